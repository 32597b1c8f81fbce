"""Fails on a source file that is too long to be read in one sitting, and on a folder with too many sources to be kept in mind.

Folders that may have more are listed in folders.txt with their number and a reason; a folder that has got fewer must say so there.
"""

import collections

import tree

MOST_LINES = 600
MOST_FILES = 30
FREE = {"collectives/algorithms"}  # a page for each collective and algorithm, however many there are
LISTED = "tests/house/folders.txt"


def problems_of_folders(counts, exceptions):
    for folder, count in sorted(counts.items()):
        most = exceptions.get(folder, (MOST_FILES,))[0]
        if count > most and folder not in FREE:
            yield f"{folder}: {count} sources; divide it, at most {most} are allowed"
    for folder, (most, *_) in exceptions.items():
        count = counts.get(folder, 0)
        if count <= MOST_FILES:
            yield f"{LISTED}: {folder} needs no exception; remove its line"
        elif count < most:
            yield f"{LISTED}: {folder} has shrunk from {most} sources to {count}; correct its line"


def main():
    root = tree.root_from_arguments(__doc__)
    paths = tree.files_of(root, tree.SOURCES)
    lengths = {path: len(tree.lines_of(root, path)) for path in paths}
    problems = [f"{path}: {length} lines; split it, at most {MOST_LINES} are allowed"
                for path, length in lengths.items() if length > MOST_LINES]
    counts = collections.Counter(str(path.parent) for path in paths)
    problems += problems_of_folders(counts, tree.exceptions_of(root, LISTED, numbers=1))
    tree.finish("house.files", len(paths), problems)


main()
