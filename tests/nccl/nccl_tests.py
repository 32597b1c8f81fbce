#!/usr/bin/env python3
"""Runs NVIDIA's nccl-tests on libtutti_nccl.so and looks at every result.

    tests/nccl/nccl_tests.py --bin FOLDER --library build/libtutti_nccl.so --one-gpu one_gpu.so --ranks 2

Each program runs twice: with f32 over sizes (its table of times is printed), and, where it reduces, with all types and
operations. All ranks are driven by one thread of one process (-g), in groups, and share the GPUs that there are. A run is
good when it ends with status 0 and its table has rows and nothing but 0 in the columns #wrong.
Exit status: 0 when all are good, 1 when not.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

REDUCING = ["all_reduce", "reduce_scatter", "reduce"]
MOVING = ["all_gather", "broadcast", "gather", "scatter", "alltoall", "sendrecv"]
SIZES = ["-b", "8", "-e", "64M", "-f", "8", "-n", "10", "-w", "2", "-c", "1", "-T", "60"]
EVERYTHING = ["-b", "1K", "-e", "256K", "-f", "16", "-n", "1", "-w", "1", "-c", "1", "-d", "all", "-o", "all", "-T", "60"]
SECONDS = 120  # of a run
# size count type redop root, then twice time algbw busbw #wrong. A time may be 1.2e+05.
ROW = re.compile(r"^\s+\d+\s+\d+\s+\S+\s+\S+\s+-?\d+((?:\s+\S+){8})\s*$")


def runs():
    """(program, options)."""
    return [(name, SIZES) for name in [*REDUCING, *MOVING]] + [(name, EVERYTHING) for name in REDUCING]


def wrong_columns(output):
    """Of every row, the two columns #wrong, as text. N/A stands where a program has no in-place form."""
    return [column for line in output.splitlines() if (row := ROW.match(line))
            for column in (row.group(1).split()[3], row.group(1).split()[7])]


def why_bad(status, output):
    """None when the run was good, else why not."""
    columns = wrong_columns(output)
    wrong = [column for column in columns if column not in ("0", "N/A")]
    if status != 0:
        return f"ended with status {status}"
    if not columns:
        return "printed no row of results"
    if wrong:
        return f"{len(wrong)} of {len(columns)} results have wrong elements"
    return None if "0" in columns else "compared nothing"


def run(arguments, program, options):
    words = [str(arguments.bin / f"{program}_perf"), "-t", "1", "-g", str(arguments.ranks), *options]
    preloaded = ":".join(str(path.absolute()) for path in (arguments.library, arguments.one_gpu) if path)
    try:
        done = subprocess.run(words, env={**os.environ, "LD_PRELOAD": preloaded}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=SECONDS)
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        status, output = f"none within {SECONDS} s", (error.stdout or b"").decode(errors="replace")
    except OSError as error:
        status, output = error.strerror, ""
    why = why_bad(status, output)
    if why or options is SIZES:
        print(output)
    print(f"{'BAD' if why else 'good'}: {program}_perf, {arguments.ranks} ranks, {len(wrong_columns(output))} results"
          f"{': ' + why if why else ''}", flush=True)
    return why is None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="where the programs of nccl-tests are")
    parser.add_argument("--library", type=pathlib.Path, required=True, help="libtutti_nccl.so")
    parser.add_argument("--one-gpu", type=pathlib.Path, help="one_gpu.so, where there are more ranks than GPUs")
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    good = [run(arguments, program, options) for program, options in runs()]
    print(f"nccl-tests: {len(good)} runs with {arguments.ranks} ranks, {good.count(False)} bad")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
