"""Fails when libtutti_nccl.so lacks a function of NVIDIA's headers, in either of its names, or shows anything else."""

import argparse
import pathlib
import re
import subprocess
import sys

from header_functions import functions_of

OWN = {"tutti_nccl_version"}  # tells our library from NVIDIA's
NEWEST = "2.32.3"


def symbols_of(library: pathlib.Path) -> set[str]:
    out = subprocess.run(["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True)
    return {line.split()[2] for line in out.stdout.splitlines()}


def soname_of(library: pathlib.Path) -> str:
    out = subprocess.run(["readelf", "-d", str(library)], check=True, capture_output=True, text=True)
    found = re.search(r"\(SONAME\).*\[(.*)\]", out.stdout)
    return found.group(1) if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("include", nargs="+", help="VERSION=FOLDER of NVIDIA's nccl.h")
    arguments = parser.parse_args()
    headers = {version: functions_of(pathlib.Path(folder))
               for version, folder in (word.split("=", 1) for word in arguments.include)}
    shown = symbols_of(arguments.library)
    problems = [f"{name}: in the headers of NCCL {version}, but not shown by the library"
                for version, names in headers.items() for name in sorted(names - shown)]
    if NEWEST in headers:
        problems += [f"{name}: shown by the library, but in no header of NVIDIA's"
                     for name in sorted(shown.difference(OWN, *headers.values()))]
    if soname_of(arguments.library) != "libnccl.so.2":
        problems.append(f"the soname is '{soname_of(arguments.library)}'; expected libnccl.so.2")
    for problem in problems:
        print(problem)
    for version, names in headers.items():
        print(f"nccl.symbols: {len(names)} functions of NCCL {version}, {len(problems)} problems")
    sys.exit(1 if problems or min(len(names) for names in headers.values()) < 80 else 0)


main()
