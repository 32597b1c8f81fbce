"""Whether each C++ file includes what it uses: the suggestions of clang-include-cleaner, but for those that follow from the
tree's rules. A source may leave to its own header (x.cc and x_test.cc to x.h) what that includes, and a third party's parts
come by its main header. ./dev lint --includes calls this."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/house"))
import std_headers  # noqa: E402
import tree  # noqa: E402

CHANGE = re.compile(r'^([-+]) ([<"][^>"]+[>"])')
# A header that the tool names, and what the tree includes for it.
FAMILIES = [r"<fmt/", r"<nlohmann/", r"<CLI/", r"<g(test|mock)/", r"<uc[pst]/", r"<hwloc", r"<infiniband/", r"<benchmark/",
            r"<relacy/", r"<sodium", r"<mpi", r"<gloo/"]
# Left alone: parts of a file, and what is included for the build's sake.
LEFT_ALONE = re.compile(r'-inl\.h"|<(bits|asm|asm-generic|linux|sys)/|<immintrin|<emmintrin|<[a-z0-9]*intrin\.h|"[a-z_]+/features\.h"')
NOT_CHECKED = re.compile(r"^(training|examples|fuzz|perf/training|tests/(training|gpu|nccl|cuda_ipc))/|-inl\.h$|\.cu$")


def family(header):
    return next((known for known in FAMILIES if re.match(known, header)), header)


def changes(build, tool, path):
    done = subprocess.run([tool, "--print=changes", "-p", build, str(path)], capture_output=True, text=True)
    if done.returncode:
        return None
    return [match.groups() for line in done.stdout.splitlines() if (match := CHANGE.match(line))]


def check(root, build, tool, path):
    """(headers to add, headers to remove), or None where clang cannot read the file."""
    found = changes(build, tool, path)
    if found is None:
        return None
    text = (root / path).read_text(encoding="utf-8")
    here = {f"{quote}{name}{'>' if quote == '<' else quote}" for quote, name in std_headers.INCLUDE.findall(text)}
    known = set(here)
    if path.suffix == ".cc":
        of_own = std_headers.own_header(root, path, {name[1:-1] for name in here})
        known |= {f"{q}{name}{'>' if q == '<' else q}" for q, name in std_headers.INCLUDE.findall(of_own)}
    families = {family(name) for name in known}
    wanted = {family(name) for sign, name in found if sign == "+"}
    add = [name for sign, name in found if sign == "+" and family(name) not in families and not LEFT_ALONE.search(name)]
    # C headers differ between systems, so this one cannot decide.
    remove = [name for sign, name in found if sign == "-" and family(name) not in wanted and not LEFT_ALONE.search(name)
              and not re.match(r"<.*\.h>", name)]
    return [name for name in add if family(name) == name], remove


def mend(root, path, add, remove):
    lines = [line for line in tree.lines_of(root, path) if line.split("  //")[0] not in {f"#include {name}" for name in remove}]
    std = [name[1:-1] for name in add if name[0] == "<"]
    lines = std_headers.mend(path, lines, std, [])
    own = [f"#include {name}" for name in add if name[0] == '"']
    if own:
        quoted = [at for at, line in enumerate(lines) if line.startswith('#include "')]
        if quoted and path.suffix == ".cc" and std_headers.is_own(path, lines[quoted[0]].split('"')[1]):
            del quoted[0]
        if quoted:
            begin = end = quoted[0]
            while end < len(lines) and lines[end].startswith('#include "'):
                end += 1
            lines = lines[:begin] + sorted(set(own + lines[begin:end])) + lines[end:]
        else:
            last = max(at for at, line in enumerate(lines) if line.startswith(("#include ", "#pragma once")))
            lines = lines[:last + 1] + ["", *sorted(own)] + lines[last + 1:]
    (root / path).write_text(re.sub(r"\n{3,}", "\n\n", "\n".join(lines) + "\n"), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, help="the folder with compile_commands.json, of clang")
    parser.add_argument("--tool", required=True, help="clang-include-cleaner")
    parser.add_argument("--mend", action="store_true", help="add and remove the headers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("files", nargs="*", type=pathlib.PurePosixPath)
    arguments = parser.parse_args()
    root = pathlib.Path.cwd()
    files = arguments.files or [path for path in tree.files_of(root, {".h", ".hpp", ".cc"}) if not NOT_CHECKED.search(str(path))]
    problems, unread = [], []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for path, found in zip(files, pool.map(lambda path: check(root, arguments.build, arguments.tool, path), files)):
            if found is None:
                unread.append(path)
                continue
            problems += [f"{path}: includes no {name}, of which it uses something" for name in found[0]]
            problems += [f"{path}: {name} is included in vain" for name in found[1]]
            if arguments.mend and any(found):
                mend(root, path, *found)
    # Such a file is not compiled here, or only behind others that include what it lacks.
    unread = [f"{path}: clang cannot read it by itself" for path in unread]
    tree.finish("includes", len(files), unread + ([] if arguments.mend else problems))


main()
