"""The table of ./dev platforms: one line for each build in .platforms/build/ROW that is named."""

import argparse
import pathlib
import re
import xml.etree.ElementTree

BUILDS = pathlib.Path(".platforms/build")
HEADINGS = ["platform", "compiler", "for", "libraries", "built", "passed", "failed", "skipped", "minutes", "result"]
LIBRARIES = {"fmt": r"fmt ([\d.]+)", "sodium": r"libsodium ([\d.]+)", "ucx": r"  ucx: on \(ucx ([\d.]+)",
             "hwloc": r"  hwloc: on \(([\d.]+)", "gtest": r"GoogleTest ([\d.]+)"}


def first(pattern, text, otherwise="-"):
    found = re.search(pattern, text)
    return found.group(1) if found else otherwise


def versions(summary):
    found = [(name, first(pattern, summary, "")) for name, pattern in LIBRARIES.items()]
    return ", ".join(f"{name} {version}" for name, version in found if version) or "-"


def built(log):
    """How many of the targets were compiled or linked, by ninja's own record: each has one line in its last form."""
    if not log.exists():
        return "-"
    lines = log.read_text().splitlines()
    return len({line.split("\t")[3] for line in lines if line.count("\t") == 4})


def tests(folder):
    """Passed, failed and skipped, of all ctest runs there."""
    suites = [xml.etree.ElementTree.parse(report).getroot() for report in folder.glob("tests*.xml")]
    if not suites:
        return ["-", "-", "-"]
    total, failed, skipped = (sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "skipped"))
    return [str(total - failed - skipped), str(failed), str(skipped)]


def row(name):
    folder = BUILDS / name
    summary = (folder / "summary.txt").read_text() if (folder / "summary.txt").exists() else ""
    state, seconds = (folder / "result").read_text().split()
    return [name, first(r"-- tutti [^,]+, [^,]+, (.+?) for", summary), first(r" for (\S+),", summary), versions(summary),
            str(built(folder / ".ninja_log")), *tests(folder), f"{int(seconds) / 60:.0f}", state]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*")
    table = [HEADINGS, *map(row, parser.parse_args().rows)]
    widths = [max(map(len, column)) for column in zip(*table)]
    for cells in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip())


main()
