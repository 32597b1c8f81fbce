"""Fails on a source file that is too long to be read in one sitting."""

import tree

MOST_LINES = 600


def main():
    root = tree.root_from_arguments(__doc__)
    paths = tree.files_of(root, tree.SOURCES)
    lengths = {path: len(tree.lines_of(root, path)) for path in paths}
    problems = [f"{path}: {length} lines; split it, at most {MOST_LINES} are allowed"
                for path, length in lengths.items() if length > MOST_LINES]
    tree.finish("house.files", len(paths), problems)


main()
