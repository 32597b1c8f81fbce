"""Fails when a word of docs/glossary.md is not found in the sources, or has no meaning beside it."""

import re

import tree

GLOSSARY = "docs/glossary.md"


def main():
    root = tree.root_from_arguments(__doc__)
    rows = [(number, [cell.strip() for cell in line.strip().strip("|").split("|")])
            for number, line in enumerate(tree.lines_of(root, GLOSSARY), 1)
            if line.startswith("|") and not line.startswith(("| here |", "|---"))]
    code = "\n".join((root / path).read_text(encoding="utf-8", errors="replace")
                     for path in tree.files_of(root, tree.CPP) if not str(path).startswith("tests/"))
    identifiers = set(re.findall(r"\w+", code))
    code = re.sub(r"\n\s*(///?)?\s*", " ", code)
    problems = []
    for number, cells in rows:
        names = re.findall(r"`(\w+)`", cells[0])
        missing = [name for name in names if name not in identifiers]
        word = re.sub(r" \(.*", "", cells[0])
        if not names and not re.search(rf"\b{word}s?\b", code, re.IGNORECASE):
            missing = [word]
        problems += [f"{GLOSSARY}:{number}: '{name}' is not in the sources; correct the row or remove it" for name in missing]
        if len(cells) != 5 or not cells[1]:
            problems.append(f"{GLOSSARY}:{number}: expected five cells, the second one with the meaning")
    tree.finish("house.glossary", len(rows), problems, unit="words")


main()
