"""Fails when the table of docs/nccl.md lacks a function of nccl/abi.h, or says of one what the library does not do."""

import argparse
import ctypes
import pathlib
import re
import sys

STATES = {"served", "refused", "in part", "no effect"}
INVALID_USAGE = 5
NO_RESULT = {"ncclGetErrorString", "ncclGetLastError", "ncclResetDebugInit", "ncclLLA2ACalcSlots",
             "ncclParamDumpAll"}


def functions_of(abi: pathlib.Path) -> set[str]:
    return set(re.findall(r"^\s*F\([\w\s*]+, (nccl\w+),", abi.read_text(), re.MULTILINE))


def table_of(page: pathlib.Path) -> dict[str, str]:
    """State by function; every row once."""
    rows = re.findall(r"^\| (nccl\w+) \| ([^|]*?) \|", page.read_text(), re.MULTILINE)
    table = dict(rows)
    assert len(table) == len(rows), "a function has two rows"
    return table


def is_refused(library: ctypes.CDLL, name: str) -> bool:
    """Whether a call of the function, all of whose arguments are null, is refused as not served."""
    if name in NO_RESULT or name.startswith("ncclTeam"):
        return False  # these give no result that could say so
    library.ncclGetLastError.restype = ctypes.c_char_p
    result = getattr(library, name)(*[ctypes.c_void_p(None)] * 12)
    text = library.ncclGetLastError(None).decode()
    refused = result == INVALID_USAGE and text.startswith(f"{name}: not served")
    if name == "ncclGroupStart":
        library.ncclGroupEnd()
    return refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("root", type=pathlib.Path, help="the top of the source tree")
    arguments = parser.parse_args()
    functions = functions_of(arguments.root / "nccl" / "abi.h")
    table = table_of(arguments.root / "docs" / "nccl.md")
    library = ctypes.CDLL(str(arguments.library))
    problems = [f"{name}: no row in docs/nccl.md" for name in sorted(functions - set(table))]
    problems += [f"{name}: in docs/nccl.md, but in no header" for name in sorted(set(table) - functions)]
    problems += [f"{name}: its state is '{state}'; expected one of {', '.join(sorted(STATES))}"
                 for name, state in table.items() if state not in STATES]
    for name in sorted(functions & set(table)):
        if is_refused(library, name) != (table[name] == "refused"):
            problems.append(f"{name}: docs/nccl.md says {table[name]}, which the library contradicts")
    for problem in problems:
        print(problem)
    print(f"nccl.docs: {len(functions)} functions, {len(problems)} problems")
    sys.exit(1 if problems or len(functions) < 90 else 0)


main()
