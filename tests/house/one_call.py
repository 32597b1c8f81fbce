"""Counts the files that docs/one_all_reduce.md sends its reader to, and fails when they are too many or too long.

They are the rows of the page's two tables: below "## Files of a first call", and below "## Files of a repeated call".
"""

import re

import tree

PAGE = "docs/one_all_reduce.md"
MOST = {"## Files of a first call": (12, 2500), "## Files of a repeated call": (5, 1500)}  # files, lines of all together
ROW = re.compile(r"\| `([\w./-]+)`(?:, `([\w./-]+)`)?")


def files_below(lines, heading):
    rest = lines[lines.index(heading) + 1:] if heading in lines else []
    end = next((k for k, line in enumerate(rest) if line.startswith("## ")), len(rest))
    return [name for line in rest[:end] if (match := ROW.match(line)) for name in match.groups() if name]


def main():
    root = tree.root_from_arguments(__doc__)
    lines = tree.lines_of(root, PAGE)
    problems, checked = [], 0
    for heading, (most_files, most_lines) in MOST.items():
        files = files_below(lines, heading)
        missing = [name for name in files if not (root / name).is_file()]
        problems += [f"{PAGE}: there is no {name}" for name in missing]
        length = sum(len(tree.lines_of(root, name)) for name in files if name not in missing)
        print(f"{heading[3:]}: {len(files)} files, {length} lines")
        if not files:
            problems.append(f"{PAGE}: no file is listed below '{heading}'")
        if len(files) > most_files or length > most_lines:
            problems.append(f"{PAGE}: {heading[3:]}: {len(files)} files with {length} lines; at most {most_files} with "
                            f"{most_lines} are allowed. Make the way of a call shorter, or the page sends its reader too far")
        checked += len(files)
    tree.finish("house.one_call", checked, problems)


if __name__ == "__main__":
    main()
