"""Fails where a page names a file that is not in the tree: a link, or a path in code type such as `base/status.h`.

A path may be written from the top, from the page, or shortened at its front (`host/wait.cc`). Notes and the changelog keep what
they say. Patterns (*, <name>, {a,b}) and what a build makes are left out.
"""

import re

import tree

LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
PATH = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:h|hpp|c|cc|cu|py|sh|cmake|md))`")
KEPT = re.compile(r"docs/notes/|perf/results/|CHANGELOG\.md|tests/chaos/log/")
MADE = re.compile(r"build/|perf/out/|/|~|\.\.?/?$")  # what such a path begins with


def main():
    root = tree.root_from_arguments(__doc__)
    pages = [path for path in tree.files_of(root, {".md"}) if not KEPT.match(str(path))]
    files = [str(path) for path in tree.files_of(root, None)]
    tails = set()
    for path in files:
        parts = path.split("/")
        tails.update("/".join(parts[k:]) for k in range(len(parts)))
    problems = []
    for page in pages:
        for number, line in enumerate(tree.lines_of(root, page), 1):
            for target in LINK.findall(line):
                if "://" not in target and not target.startswith("mailto:") and not (root / page.parent / target).exists():
                    problems.append(f"{page}:{number}: there is no {target}")
            problems += [f"{page}:{number}: there is no file {path}" for path in PATH.findall(line)
                         if path not in tails and not MADE.match(path)]
    tree.finish("house.links", len(pages), problems, unit="pages")


main()
