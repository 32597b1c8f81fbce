"""Which files the house checks look at."""

import argparse
import pathlib
import subprocess
import sys

SOURCES = {".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}
CPP = {".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh"}


def root_from_arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("root", type=pathlib.Path, help="the top of the source tree")
    return parser.parse_args().root.resolve()


def files_of(root, suffixes):
    """Paths relative to `root`, sorted. In a git checkout: all that git does not ignore; else all of the folder. `suffixes`:
    None: any."""
    if (root / ".git").exists():
        listed = subprocess.run(
            ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
        paths = [pathlib.PurePosixPath(name) for name in listed if name and (root / name).is_file()]
    else:
        paths = [pathlib.PurePosixPath(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
        paths = [path for path in paths if not path.parts[0].startswith((".", "build"))]
    return sorted(path for path in paths if suffixes is None or path.suffix in suffixes)


def lines_of(root, path):
    return (root / path).read_text(encoding="utf-8", errors="replace").splitlines()


def exceptions_of(root, path, numbers):
    """A list of exceptions, lines `name NUMBER... reason`: name -> tuple of so many numbers. A reason is needed."""
    if not (root / path).is_file():
        return {}
    entries = [line.split(maxsplit=numbers + 1) for line in lines_of(root, path) if line and not line.startswith("#")]
    unclear = [" ".join(entry) for entry in entries if len(entry) < numbers + 2]
    if unclear:
        sys.exit(f"{path}: '{unclear[0]}': expected a name, {numbers} number(s) and a reason")
    return {entry[0]: tuple(map(int, entry[1:-1])) for entry in entries}


def finish(what, checked, problems, unit="files"):
    """Prints the outcome and ends the program: 0 when there is no problem and something was checked."""
    for problem in problems:
        print(problem)
    if not checked:
        print(f"{what}: nothing found to check")
    print(f"{what}: {checked} {unit}, {len(problems)} problems")
    sys.exit(1 if problems or not checked else 0)
