"""Fails on words that mark unfinished work: what is in the tree is done, what is not done is an issue."""

import re

import tree

UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK|TB" + r"D)\b")


def main():
    root = tree.root_from_arguments(__doc__)
    paths = tree.files_of(root, tree.SOURCES | {".txt", ".md"})
    problems = [f"{path}:{number}: {match.group(0)} marks unfinished work"
                for path in paths for number, line in enumerate(tree.lines_of(root, path), 1)
                if (match := UNFINISHED.search(line))]
    tree.finish("house.words", len(paths), problems)


main()
