"""Runs examples one after the other in the same ranks, as a user would run each: its file, as the main module.

  examples.py FILE[,WORD...]...          under torchrun

What a rank prints in one of them comes behind a line "==== FILE[,WORD...]", in one piece, so that ranks do not mix. Each example
makes its default group and destroys it.
"""
import contextlib
import io
import os
import runpy
import sys

if __name__ == "__main__":
    for example in sys.argv[1:]:
        path, *words = example.split(",")
        sys.argv = [path, *words]
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                runpy.run_path(path, run_name="__main__")
        finally:
            os.write(1, f"\n==== {example}\n{said.getvalue()}".encode())
