"""Fails when libtutti.so shows a symbol that is not API, or does not show a function of the C API."""

import argparse
import pathlib
import re
import subprocess
import sys


def api_of(headers):
    """Names in the public headers: C functions, and classes and functions of namespace tutti marked TUTTI_API."""
    c_text = (headers / "tutti.h").read_text()
    cpp_text = (headers / "tutti.hpp").read_text()
    c_functions = set(re.findall(r"^TUTTI_API\b[^;(]*?\b(tutti_\w+)\(", c_text, re.MULTILINE))
    classes = set(re.findall(r"^(?:class|struct) TUTTI_API (\w+)", cpp_text, re.MULTILINE))
    functions = set(re.findall(r"^TUTTI_API\b[^;(]*?\b(\w+)\(", cpp_text, re.MULTILINE))
    return c_functions, classes, functions


def symbols_of(library):
    out = subprocess.run(["nm", "-D", "--defined-only", "-C", str(library)], check=True, capture_output=True, text=True)
    return [line.split(maxsplit=2)[2] for line in out.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("headers", type=pathlib.Path, help="include/tutti")
    arguments = parser.parse_args()
    c_functions, classes, functions = api_of(arguments.headers)
    shown = symbols_of(arguments.library)
    of_class = re.compile(r"((typeinfo|typeinfo name|vtable) for )?tutti::(" + "|".join(sorted(classes)) + r")(::.*)?")
    of_function = re.compile(r"tutti::(" + "|".join(sorted(functions)) + r")\(.*")
    problems = [f"{symbol}: shown by the library, but not API" for symbol in shown
                if symbol not in c_functions and not of_class.fullmatch(symbol) and not of_function.fullmatch(symbol)]
    problems += [f"{name}: in tutti.h, but not shown by the library" for name in sorted(c_functions - set(shown))]
    problems += [f"tutti::{name}: in tutti.hpp, but not shown by the library" for name in sorted(functions)
                 if not any(symbol.startswith(f"tutti::{name}(") for symbol in shown)]
    problems += [f"tutti::{name}: in tutti.hpp, but no member is shown by the library" for name in sorted(classes)
                 if not any(f"tutti::{name}" in symbol for symbol in shown)]
    for problem in problems:
        print(problem)
    print(f"house.symbols: {len(shown)} symbols, {len(problems)} problems")
    sys.exit(1 if problems or not shown else 0)


main()
