"""Fails when libtutti_nccl.so lacks a function of NVIDIA's headers, in either of its names, or shows anything else."""

import argparse
import pathlib
import re
import subprocess
import sys

DECLARATION = re.compile(r"^[\w\s*]*?\b(p?nccl\w+)\s*\(", re.MULTILINE)
HOST_FUNCTION = re.compile(r"^NCCL_EXTERN_C __host__ [\w\s*]*?\b(nccl\w+)\(", re.MULTILINE)
OWN = {"tutti_nccl_version"}  # tells our library from NVIDIA's


def functions_of(include: pathlib.Path) -> set[str]:
    """All names in nccl.h, which has both of each function, and those of nccl_device's, which has one."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|^#[^\n]*", "", (include / "nccl.h").read_text(), flags=re.DOTALL | re.MULTILINE)
    names = set(DECLARATION.findall(text))
    for header in sorted((include / "nccl_device").rglob("*.h")):
        names |= {prefix + name for name in HOST_FUNCTION.findall(header.read_text()) for prefix in ("", "p")}
    return names


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
    parser.add_argument("include", type=pathlib.Path, help="the folder of NVIDIA's nccl.h")
    arguments = parser.parse_args()
    wanted, shown = functions_of(arguments.include), symbols_of(arguments.library)
    problems = [f"{name}: in NVIDIA's headers, but not shown by the library" for name in sorted(wanted - shown)]
    problems += [f"{name}: shown by the library, but in no header of NVIDIA's" for name in sorted(shown - wanted - OWN)]
    if soname_of(arguments.library) != "libnccl.so.2":
        problems.append(f"the soname is '{soname_of(arguments.library)}'; expected libnccl.so.2")
    for problem in problems:
        print(problem)
    print(f"nccl.symbols: {len(wanted)} functions, {len(problems)} problems")
    sys.exit(1 if problems or len(wanted) < 80 else 0)


main()
