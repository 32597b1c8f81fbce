"""Fails on a source file that is too long to be read in one sitting, and on a folder with too many sources to be kept in mind."""

import collections

import tree

MOST_LINES = 600
MOST_FILES = 30
FREE = {"collectives/algorithms"}  # a page for each collective and algorithm, however many there are


def main():
    root = tree.root_from_arguments(__doc__)
    paths = tree.files_of(root, tree.SOURCES)
    lengths = {path: len(tree.lines_of(root, path)) for path in paths}
    problems = [f"{path}: {length} lines; split it, at most {MOST_LINES} are allowed"
                for path, length in lengths.items() if length > MOST_LINES]
    counts = collections.Counter(str(path.parent) for path in paths)
    problems += [f"{folder}: {count} sources; divide it, at most {MOST_FILES} are allowed"
                 for folder, count in sorted(counts.items()) if count > MOST_FILES and folder not in FREE]
    tree.finish("house.files", len(paths), problems)


main()
