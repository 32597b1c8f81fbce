"""Runs examples one after the other in the same ranks, as a user would run each: its file, as the main module.

  examples.py FILE[,WORD...]...          under torchrun

Before each a line "==== FILE[,WORD...]" by rank 0. Each makes its default group and destroys it.
"""
import os
import runpy
import sys

if __name__ == "__main__":
    for example in sys.argv[1:]:
        if os.environ["RANK"] == "0":
            print(f"==== {example}", flush=True)
        path, *words = example.split(",")
        sys.argv = [path, *words]
        runpy.run_path(path, run_name="__main__")
