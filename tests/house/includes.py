"""Reads every include and fails on one that the plan of the house does not allow, and on a cycle between rooms."""

import pathlib
import re

import tree

# Room of a file: the longest entry that its path begins with. Single files that many rooms share are rooms of their own.
# The value: which rooms it may include, beside itself.
WORDS = {"types"}
CONTRACTS = WORDS | {"base", "transport", "transport/wire"}
COLLECTIVES = {"collectives/plan", "collectives/algorithms", "collectives/planner", "collectives/reduce",
               "collectives/executor", "collectives/executor/wait", "collectives/executor/host", "collectives/executor/p2p",
               "collectives/executor/cuda", "call"}
TRANSPORTS = {"transport/sockets", "transport/bootstrap", "transport/inproc", "transport/shm", "transport/hosts",
              "transport/cuda_ipc", "transport/tcp", "transport/ucx", "transport/verbs"}
LIBRARY = CONTRACTS | COLLECTIVES | TRANSPORTS | {"topology", "device", "launch", "api", "interface"}
TRAINERS = WORDS | {"base", "launch", "api", "training"}
TORCH_PARTS = {"api"} | {f"training/torch_backend/csrc/{part}" for part in ("base", "tensors", "execution", "backend")}
ANYTHING = None
ROOMS = {
    "include/tutti/types.hpp": WORDS,
    "include/tutti": WORDS,
    "base": WORDS,
    "launch": WORDS | {"base"},
    "device": WORDS | {"base"},
    "topology": WORDS | {"base", "device"},
    "transport": WORDS | {"base"},
    "transport/sockets": WORDS | {"base"},
    "transport/wire": WORDS | {"base", "transport"},
    "transport/bootstrap": WORDS | {"base", "launch", "transport/sockets"},
    "transport/inproc": CONTRACTS | {"transport/bootstrap", "topology"},
    "transport/hosts": CONTRACTS,
    "transport/shm": CONTRACTS | {"transport/bootstrap", "transport/sockets", "topology"},
    "transport/cuda_ipc": CONTRACTS | {"transport/bootstrap", "transport/sockets", "topology", "device"},
    "transport/tcp": CONTRACTS | {"transport/bootstrap", "transport/sockets"},
    "transport/ucx": CONTRACTS | {"transport/bootstrap", "transport/sockets"},
    "transport/verbs": CONTRACTS | {"topology"},
    "collectives/plan": WORDS | {"base"},
    "collectives/algorithms": WORDS | {"base", "collectives/plan", "topology"},
    "collectives/planner": WORDS | {"base", "collectives/plan", "collectives/algorithms", "topology", "call"},
    "collectives/reduce": WORDS | {"base"},
    "collectives/executor": CONTRACTS | {"collectives/plan", "collectives/reduce", "call"},
    "collectives/executor/wait": CONTRACTS | {"collectives/executor"},
    "collectives/executor/host": CONTRACTS | {"collectives/plan", "collectives/reduce", "collectives/executor",
                                              "collectives/executor/wait"},
    "collectives/executor/p2p": CONTRACTS | {"collectives/reduce", "collectives/executor/wait", "call"},
    "collectives/executor/cuda": CONTRACTS | {"collectives/plan", "collectives/reduce", "collectives/executor", "call", "device"},
    "collectives/call.h": WORDS,
    "collectives/communicator_interface.h": WORDS | {"base", "api", "call"},
    "collectives/baseline": WORDS | {"base", "device", "api", "interface", "call", "nccl_abi"},
    "collectives/job": CONTRACTS | TRANSPORTS | {"topology", "device", "call", "collectives/plan", "collectives/algorithms",
                                                 "collectives/planner"},
    "collectives/diagnostics": CONTRACTS | COLLECTIVES | {"api"},
    "collectives/calls": CONTRACTS | COLLECTIVES | {"transport/hosts", "interface", "api", "topology", "device", "collectives/job",
                                                    "collectives/diagnostics"},
    "collectives/device": CONTRACTS | COLLECTIVES | {"transport/cuda_ipc", "transport/shm", "transport/verbs", "api", "topology",
                                                     "device", "collectives/job", "collectives/diagnostics",
                                                     "collectives/calls"},
    "collectives/communicator": CONTRACTS | COLLECTIVES | {"transport/hosts", "interface", "api", "topology", "device",
                                                           "collectives/job", "collectives/diagnostics",
                                                           "collectives/calls", "collectives/device"},
    "collectives/api": WORDS | {"base", "api", "call", "interface", "device", "transport/cuda_ipc", "transport/shm",
                                "collectives", "collectives/device", "collectives/calls"},
    "collectives": LIBRARY | {"collectives/baseline", "collectives/job", "collectives/diagnostics", "collectives/calls",
                              "collectives/communicator"},
    "nccl/abi.h": set(),
    "nccl": WORDS | {"base", "api", "nccl_abi", "collectives", "collectives/algorithms"},  # ids forgotten; algorithms' names
    "training": WORDS | {"base", "api"},
    "training/trainers": TRAINERS,
    "training/trainers/gpt": TRAINERS | {"training/trainers"},
    "training/trainers/vision": TRAINERS | {"training/trainers"},
    "training/torch_backend/csrc/base": WORDS | {"api"},
    "training/torch_backend/csrc/tensors": WORDS | {"api", "training/torch_backend/csrc/base"},
    "training/torch_backend/csrc/execution": WORDS | TORCH_PARTS - {"training/torch_backend/csrc/backend"},
    "training/torch_backend/csrc/backend": WORDS | TORCH_PARTS,
    "training/torch_backend": WORDS | TORCH_PARTS,
    "tuning": LIBRARY | {"collectives", "collectives/job", "collectives/communicator"},
    "perf": LIBRARY | {"collectives/baseline"},
    "perf/training": LIBRARY | {"collectives", "collectives/calls", "training"},
    "examples": WORDS | {"api"},
    "cli": ANYTHING,
    "fuzz": ANYTHING,
    "tests": ANYTHING,
}
NAMES = {"include/tutti/types.hpp": "types", "include/tutti": "api", "collectives/call.h": "call",
         "collectives/communicator_interface.h": "interface", "nccl/abi.h": "nccl_abi"}

# Third parties, and the rooms that may see them (with the rooms inside these). The standard library, the C library and
# the kernel's headers are free.
THIRD_PARTIES = {
    r"fmt/": ["base", "launch", "device", "topology", "transport", "collectives", "nccl", "training", "tuning", "perf", "cli"],
    r"nlohmann/": ["topology", "transport", "collectives", "training", "perf", "cli"],
    r"sodium": ["transport", "collectives", "training"],
    r"hwloc": ["topology"],
    r"uc[ps]/": ["transport/ucx"],
    r"infiniband/": ["transport/verbs"],
    r"cuda": ["device", "transport/cuda_ipc", "collectives/executor/cuda", "perf"],
    r"hwy/": ["collectives/reduce"],
    r"(torch|ATen|c10)/": ["training", "examples", "perf/training"],
    r"pybind11/": ["training/torch_backend"],
    r"nccl_device/": [],
    r"(mpi\.h|gloo/)": ["collectives/baseline"],
    r"CLI/": ["cli", "perf", "training", "base/option_checks.h"],
    r"benchmark/": ["perf"],
    r"tutti/": ["examples"],  # a user's program includes us as a third party
    r"(gtest|gmock|relacy)/": [],
}
EVERYWHERE = ["tests", "fuzz"]
TORCH_BACKEND = pathlib.PurePosixPath("training/torch_backend")  # has a build of its own, whose includes begin here
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def is_inside(path, folder):
    return path == folder or path.startswith(folder + "/")


def room_of(path):
    """The key of ROOMS for a path, or None."""
    matches = [key for key in ROOMS if is_inside(path, key)]
    return max(matches, key=len, default=None)


def name_of(key):
    return NAMES.get(key, key)


def target_of(root, including, name):
    """The file in the tree that a quoted include means, or None."""
    for folder in [pathlib.PurePosixPath("."), pathlib.PurePosixPath("include"), TORCH_BACKEND, including.parent]:
        parts = []
        for part in (folder / name).parts:
            parts = parts[:-1] if part == ".." else parts + [part]
        if (root.joinpath(*parts)).is_file():
            return "/".join(parts)
    return None


def third_party_problem(path, name):
    for pattern, rooms in THIRD_PARTIES.items():
        if re.match(pattern, name):
            if any(is_inside(path, room) for room in rooms + EVERYWHERE):
                return None
            return f"<{name}> is not for this room; it may be seen by {', '.join(rooms + EVERYWHERE)}"
    if "." in name and "/" in name and not re.match(r"(sys|linux|netinet|arpa|net|asm|bits)/", name):
        return f"<{name}> is a third party that THIRD_PARTIES in tests/house/includes.py does not list"
    return None


def cycle_in(edges):
    """A cycle of rooms as a list, or None. Depth first; `path` is the chain being followed."""
    finished, path = set(), []

    def visit(room):
        if room in path:
            return path[path.index(room):] + [room]
        if room in finished:
            return None
        path.append(room)
        for following in sorted(edges.get(room, ())):
            found = visit(following)
            if found:
                return found
        path.pop()
        finished.add(room)
        return None

    for room in sorted(edges):
        found = visit(room)
        if found:
            return found
    return None


def includes_of(root, path):
    """Each include of a file: line number, bracket, name, and the file in the tree that it means, or None."""
    for number, line in enumerate(tree.lines_of(root, path), 1):
        if match := INCLUDE.match(line):
            bracket, name = match.groups()
            yield number, bracket, name, target_of(root, path, name) if bracket == '"' else None


def main():
    root = tree.root_from_arguments(__doc__)
    problems, edges = [], {}
    paths = tree.files_of(root, tree.CPP)
    for path in paths:
        key = room_of(str(path))
        if key is None:
            problems.append(f"{path}: belongs to no room; add its folder to ROOMS in tests/house/includes.py")
            continue
        for number, bracket, name, target in includes_of(root, path):
            where = f"{path}:{number}"
            if target is None:
                problem = third_party_problem(str(path), name) if bracket == "<" else f'no file "{name}" in the tree'
                if problem:
                    problems.append(f"{where}: {problem}")
                continue
            other = room_of(target)
            if other is None or other == key:
                continue
            edges.setdefault(name_of(key), set()).add(name_of(other))
            allowed = ROOMS[key]
            if allowed is not ANYTHING and name_of(other) not in allowed:
                problems.append(f"{where}: room {name_of(key)} may not include room {name_of(other)} ({target}); "
                                f"it may include {', '.join(sorted(allowed - {name_of(key)}))}")
    cycle = cycle_in(edges)
    if cycle:
        problems.append("rooms include each other in a cycle: " + " -> ".join(cycle))
    tree.finish("house.includes", len(paths), problems)


if __name__ == "__main__":
    main()
