"""Fails on words that should not be in the tree: marks of unfinished work, retired names, and too many vague words in comments.

Retired names are in words.txt: what was renamed must not come back. Vague words (nobody, whoever ...) and contract comments
without a subject (/// Of ..., /// True: ...) are counted, since there were many; the limits below are only lowered. With --list
after the folder it prints where they are, by room.
"""

import collections
import re
import sys

import tree

UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK|TB" + r"D)\b")
RETIRED = "tests/house/words.txt"  # lines: regular expression of a whole word; where it is legal (a,b; or -); what it is now
VAGUE = re.compile(r"\b(nobody|somebody|everybody|anybody|no one(?!-)|someone|whoever|likewise|the own)\b", re.IGNORECASE)
FRAGMENT = re.compile(r"\s*/// (Of|By|As|That|Where|What|The same|Likewise|True:)(?!\w)")
MOST_VAGUE = 0
MOST_FRAGMENTS = 0
# What is kept as it was written, or lists the words.
KEPT = re.compile(r"perf/results/|tests/plan/golden/|docs/notes/|tests/chaos/log/|CHANGELOG\.md|tests/house/(words|planted)\.")


def pattern_of(word):
    """Whole words, also as a part of an identifier: near in put_near, Near in NearPuts."""
    behind = "(?<![A-Z0-9])" if word[0].isupper() else "(?<![A-Za-z0-9])"
    return re.compile(f"{behind}(?:{word})(?![a-z0-9])")


def retired_of(root):
    """Pattern, folders where it is legal, and what it is now."""
    if not (root / RETIRED).is_file():
        return []
    entries = [line.split(maxsplit=2) for line in tree.lines_of(root, RETIRED) if line and not line.startswith("#")]
    return [(pattern_of(word), () if legal == "-" else tuple(legal.split(",")), now) for word, legal, now in entries]


def room_of(path):
    return "/".join(path.parts[:2]) if len(path.parts) > 2 else path.parts[0]


class Count:
    """What may only get rarer."""

    def __init__(self, what, most):
        self.what, self.most, self.places = what, most, collections.defaultdict(list)

    def add(self, path, number, text):
        self.places[room_of(path)].append(f"{path}:{number}: {text.strip()}")

    def total(self):
        return sum(map(len, self.places.values()))

    def problems(self):
        if self.total() > self.most:
            yield (f"{self.total()} {self.what}, at most {self.most} are allowed: 'python3 tests/house/words.py . --list' "
                   "shows them; write with a subject and a verb, docs/glossary.md has the nouns")

    def show(self):
        for room, places in sorted(self.places.items()):
            print(f"--- {room}: {len(places)} {self.what}", *places, sep="\n")


def main():
    lists = sys.argv[-1] == "--list"
    if lists:
        sys.argv.pop()
    root = tree.root_from_arguments(__doc__)
    paths = tree.files_of(root, tree.SOURCES | {".txt", ".md"})
    retired = retired_of(root)
    vague, fragments = Count("vague words", MOST_VAGUE), Count("comments without a subject", MOST_FRAGMENTS)
    problems = []
    for path in paths:
        before = ""
        kept = KEPT.match(str(path))
        words = [] if kept else [entry for entry in retired if not str(path).startswith(entry[1] or "//")]
        problems += [f"{path}: '{match.group(0)}' is called {now} now; rename the file" for pattern, _, now in words
                     if (match := pattern.search(str(path)))]
        for number, line in enumerate(tree.lines_of(root, path), 1):
            if match := UNFINISHED.search(line):
                problems.append(f"{path}:{number}: {match.group(0)} marks unfinished work")
            problems += [f"{path}:{number}: '{match.group(0)}' is called {now} now" for pattern, _, now in words
                         if (match := pattern.search(line))]
            if not kept:
                for _ in VAGUE.findall(line):
                    vague.add(path, number, line)
                if FRAGMENT.match(line) and not before.startswith("///"):
                    fragments.add(path, number, line)
            before = line.strip()
    if lists:
        vague.show()
        fragments.show()
    print(f"{vague.total()} vague words, {fragments.total()} comments without a subject")
    tree.finish("house.words", len(paths), problems + [*vague.problems(), *fragments.problems()])


if __name__ == "__main__":
    main()
