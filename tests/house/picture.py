"""The picture of the rooms and who includes whom: fails where docs/pictures/rooms.dot is not what the includes say.

    python3 tests/house/picture.py . --write     writes rooms.dot anew, and rooms.svg with it (needs graphviz)

Rooms are those of includes.py. Transports are one box; an arrow that follows from others is left out, and so are tests.
"""

import collections
import hashlib
import pathlib
import subprocess
import sys

import includes
import tree

DOT = "docs/pictures/rooms.dot"
SVG = "docs/pictures/rooms.svg"
LEFT_OUT = {"tests", "fuzz", "examples"}
TRANSPORTS = "inproc, shm, cuda_ipc, tcp, ucx, verbs"
WHOLE = ("training", "perf", "collectives/executor")  # one box with the rooms inside
MERGED = {"types": "api", "call": "interface", **{f"transport/{name}": TRANSPORTS for name in TRANSPORTS.split(", ")}}
LABELS = {"api": "include/tutti", "interface": "call, interface", "nccl_abi": "nccl/abi.h", "collectives": "create"}


def box_of(path):
    """The box of a file, or None."""
    key = includes.room_of(path)
    if key is None or key in LEFT_OUT:
        return None
    name = includes.name_of(key)
    return next((room for room in WHOLE if name.startswith(f"{room}/")), MERGED.get(name, name))


def arrows_of(root):
    arrows = collections.defaultdict(set)
    for path in tree.files_of(root, tree.CPP):
        box = box_of(str(path))
        if box is None:
            continue
        arrows[box]
        for _, _, _, target in includes.includes_of(root, path):
            other = box_of(target) if target else None
            if other not in (None, box):
                arrows[box].add(other)
    return arrows


def reached(arrows, box, without=None):
    """All boxes that arrows lead to, but for the direct arrow to `without`."""
    found, waiting = set(), [other for other in arrows[box] if other != without]
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting += arrows.get(other, ())
    return found


def dot_of(arrows):
    lines = ["// Made by tests/house/picture.py.", "digraph rooms {", "  rankdir=TB; ranksep=0.35; nodesep=0.25;",
             '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="Helvetica", fontsize=12, height=0.3];',
             "  edge [color=gray40, arrowsize=0.6];"]
    for cluster in ("collectives", "transport"):
        inside = sorted(box for box in arrows if box == cluster or box.startswith(cluster + "/") or
                        (cluster == "transport" and box == TRANSPORTS) or (cluster == "collectives" and box == "interface"))
        lines.append(f'  subgraph cluster_{cluster} {{ label="{cluster}/"; fontname="Helvetica"; style=filled; color=gray92;')
        for box in inside:
            label = LABELS.get(box, box.removeprefix(cluster + "/") if box != cluster else "*.h")
            lines.append(f'    "{box}" [label="{label}"];')
        lines.append("  }")
    lines += [f'  "{box}" [label="{LABELS.get(box, box)}"];' for box in sorted(arrows)
              if not box.startswith(("collectives", "transport")) and box not in (TRANSPORTS, "interface")]
    lines += [f'  "{box}" -> "{other}";' for box in sorted(arrows) for other in sorted(arrows[box])
              if other not in reached(arrows, box, without=other)]
    return "\n".join(lines + ["}", ""])


def stamp(dot):
    return f"<!-- rooms.dot: {hashlib.sha256(dot.encode()).hexdigest()} -->\n"


def write(root, dot):
    (root / DOT).write_text(dot)
    drawn = subprocess.run(["dot", "-Tsvg"], input=dot, capture_output=True, text=True, check=True).stdout
    (root / SVG).write_text(drawn[drawn.index("<svg"):] + stamp(dot))


def main():
    writes = sys.argv[-1] == "--write"
    if writes:
        sys.argv.pop()
    root = tree.root_from_arguments(__doc__)
    arrows = arrows_of(root)
    dot = dot_of(arrows)
    if writes:
        write(root, dot)
    text = {name: (root / name).read_text() if (root / name).is_file() else "" for name in (DOT, SVG)}
    problems = []
    if text[DOT] != dot:
        problems.append(f"{DOT} is not what the includes say: 'python3 tests/house/picture.py . --write' draws it anew")
    elif not text[SVG].endswith(stamp(dot)):
        problems.append(f"{SVG} is not drawn from {DOT}: 'python3 tests/house/picture.py . --write' draws it anew")
    tree.finish("house.picture", len(arrows), problems, unit="rooms")


if __name__ == "__main__":
    main()
