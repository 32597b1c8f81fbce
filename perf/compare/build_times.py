#!/usr/bin/env python3
"""How long ./dev demo, build and test take in a fresh clone of HEAD: cold, with an empty compiler cache, and warm, with the
one that the cold run has left. Each clone makes its own .venv; Debian's packages stay installed.

  ./dev bench build [demo|build|test ...] [--save]

Writes build_times.md to perf/out, or with --save to perf/results/<machine>/<date>-<commit>/, after each run.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from compare import PERF, ROOT, describe_machine, folder_name

COMMANDS = ["demo", "build", "test"]
STEP = re.compile(r"^\[\d+/\d+\] (.*) \((\d+):(\d\d)\)$")
PART = re.compile(r"^(?:.*\r\x1b\[K)?([^:]+): done in (\d+):(\d\d)$")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="demo, build, test [all]")
    parser.add_argument("--save", action="store_true", help="keep the table in perf/results")
    parser.add_argument("--cold-only", action="store_true", help="no second run with the cache of the first")
    arguments = parser.parse_args()
    for command in arguments.commands:
        if command not in COMMANDS:
            parser.error(f"'{command}' is none of {', '.join(COMMANDS)}")
    arguments.commands = arguments.commands or COMMANDS
    return arguments


def clock(seconds):
    seconds = round(seconds)
    return f"{seconds // 60}:{seconds % 60:02}"


def measure(command, cache):
    """Seconds in all, and what the parts took, by the lines that ./dev prints."""
    clone = ROOT / "build" / "build_times"
    shutil.rmtree(clone, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    environment = dict(os.environ, CCACHE_DIR=str(cache))
    environment.pop("TUTTI_KERNELS", None)
    begin = time.monotonic()
    done = subprocess.Popen(["./dev", command], cwd=clone, env=environment, stdout=subprocess.PIPE, text=True)
    steps, parts = [], []
    for line in done.stdout:
        print(line, end="", flush=True)
        if step := STEP.match(line.strip()):
            steps.append((step[1], int(step[2]) * 60 + int(step[3])))
        if part := PART.match(line.strip()):
            parts.append(f"{part[1]} {part[2]}:{part[3]}")
    if done.wait() != 0:
        sys.exit(f"build_times: ./dev {command} failed with status {done.returncode}")
    seconds = time.monotonic() - begin
    ends = [at for _, at in steps[1:]] + [seconds]
    shutil.rmtree(clone)
    return seconds, [f"{title.split(':')[0]} {clock(at)} to {clock(end)}" for (title, at), end in zip(steps, ends)], parts


def write(folder, machine, rows):
    lines = ["# Build times", "", f"{machine['cores']} cores of {machine['processor']}, {machine['system']}, commit "
             f"{machine['commit']}, {machine['date']}; minutes:seconds of the wall clock, by `./dev bench build`.", "",
             "| command | compiler cache | in all | its steps | of them |", "|---|---|---:|---|---|"]
    for command, state, seconds, steps, parts in rows:
        lines.append(f"| `./dev {command}` | {state} | {clock(seconds)} | {'; '.join(steps)} | {'; '.join(parts)} |")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "build_times.md").write_text("\n".join(lines) + "\n")


def main():
    arguments = parse_arguments()
    machine = describe_machine(round(os.getloadavg()[0], 2))
    folder = PERF / "results" / folder_name(machine) if arguments.save else PERF / "out"
    rows = []
    for command in arguments.commands:
        cache = ROOT / "build" / "build_times_cache"
        shutil.rmtree(cache, ignore_errors=True)
        for state in ["empty"] if arguments.cold_only else ["empty", "warm"]:
            rows.append((command, state, *measure(command, cache)))
            write(folder, machine, rows)
        shutil.rmtree(cache, ignore_errors=True)
    print((folder / "build_times.md").read_text(), end="")
    print(f"written to {folder / 'build_times.md'}")


if __name__ == "__main__":
    main()
