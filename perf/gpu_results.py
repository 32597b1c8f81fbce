"""What perf/gpu.py keeps in a folder of results, so that a run can go on later, and be drawn on another machine:
bench.json has the machine and why something is missing, raw/<collective>_<kind>_<ranks>_<how>.json what a program wrote."""
import json

KINDS = ["limit", "threads", "processes", "nccl"]


def name_of(key):
    return "_".join(str(word) for word in key)


def key_of(name):
    """The other way: ("all_reduce", "threads", 2, "graph")."""
    collective, kind, ranks, how = name.rsplit("_", 3)
    return collective, kind, int(ranks), how


def asked_size(size):
    """The size that was asked for: where all ranks have a share, a row's is rounded down to whole 16 bytes of each."""
    return 1 << (size - 1).bit_length() if size else 0


class Results:
    def __init__(self, out):
        self.out = out
        self.raw = out / "raw"
        try:
            kept = json.loads((out / "bench.json").read_text())
        except (OSError, ValueError):
            kept = {}
        self.machine = kept.get("machine")
        self.missing = kept.get("missing", {})

    def begin(self, machine, resume):
        """Anew, or where an earlier run on such a machine has ended. Raises RuntimeError: it was on another one."""
        if resume and self.machine:
            for what, of in [("processor", lambda m: m["processor"]), ("GPUs", lambda m: sorted(gpu["name"] for gpu in m["gpus"])),
                             ("commit", lambda m: m["commit"])]:
                if of(self.machine) != of(machine):
                    raise RuntimeError(f"{self.out} has results of another machine or commit: {what} {of(self.machine)}, here "
                                       f"{of(machine)}; expected another --out")
        else:
            self.machine, self.missing = machine, {}
            for path in self.raw.glob("*.json"):
                path.unlink()
        self.raw.mkdir(parents=True, exist_ok=True)
        self.keep()

    def keep(self):
        (self.out / "bench.json").write_text(json.dumps({"machine": self.machine, "missing": self.missing}, indent=2) + "\n")

    def path(self, key):
        return self.raw / f"{name_of(key)}.json"

    def rows(self, key):
        """What a program has written; None when it has not come to its end."""
        try:
            return json.loads(self.path(key).read_text())["results"]
        except (OSError, ValueError, KeyError):
            return None

    def miss(self, key, why):
        """`why`: a sentence; None when it is there."""
        self.missing.pop(name_of(key), None)
        if why:
            self.missing[name_of(key)] = why
        self.keep()

    def read(self):
        """(times, limits): times[key][size] is a row's half out of place, limits[ranks][size] one of roofline_device."""
        times, limits = {}, {}
        keys = [key_of(path.stem) for path in self.raw.glob("*.json")]
        for key in sorted(keys, key=lambda key: (key[0], KINDS.index(key[1]), key[2], key[3])):
            rows = {asked_size(row["size"]): row for row in self.rows(key) or [] if row["size"]}
            if key[1] == "limit":
                limits[key[2]] = rows
            elif rows:
                times[key] = {size: row["out_of_place"] for size, row in rows.items()}
        return times, limits
