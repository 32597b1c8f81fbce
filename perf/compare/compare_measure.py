"""Runs the programs, in turn, and keeps their times. Every variant runs through the same program."""
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from compare_goals import BASELINES, print_size

COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "gather", "scatter",
               "sendrecv"]
TUTTI_AND_BASELINES = ["tutti registered", "tutti plain", *BASELINES]
# What is compared: the column's name and the program's options.
VARIANTS = {
    "tutti registered": ["--backend", "tutti", "--memory", "registered"],
    "tutti plain": ["--backend", "tutti", "--memory", "plain"],
    "tutti deterministic": ["--backend", "tutti", "--memory", "registered", "--deterministic"],
    **{name: ["--backend", name, "--memory", "plain"] for name in BASELINES},
}
# MPICH's ranks spin and never give their core away, so with more ranks than cores each message takes a time slice of
# the scheduler, and a large vector takes minutes.
OVERSUBSCRIBED_MPICH_BYTES = 1 << 20


def parse_size(text):
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def describe_failure(done, name):
    """One line of what a program said before it failed: its own words, since a launcher around it adds many."""
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if any(map(str.isalpha, line))]
    own = [line for line in lines if line.startswith(f"{name}:")]
    return f"exit status {done.returncode}: {(own or lines[-1:] or ['no output'])[0]}"


def run_program(command, json_file, timeout=300):
    """The program's JSON, or a sentence that says why there is none."""
    name = os.path.basename(command[0])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"{name} did not end within {timeout} s"
    except OSError as error:
        return f"{name}: {error.strerror}"
    if done.returncode != 0:
        return describe_failure(done, name)
    return json.loads(pathlib.Path(json_file).read_text())


def measure_training(arguments, collection, section, program, *options):
    """Runs a program of build/bin once for a section of its own; what is missing is said."""
    path = arguments.bin / program
    if not path.exists():
        collection.missing[section] = f"{program} was not built (it needs LibTorch)"
        return
    with tempfile.TemporaryDirectory(prefix="tutti_compare_") as folder:
        file = os.path.join(folder, "report.json")
        report = run_program([str(path), *options, "-J", file], file, timeout=900)
    (collection.missing if isinstance(report, str) else collection.parts)[section] = report


class Collection:
    """Times by (ranks, collective, variant, size); each a list over rounds. What "deterministic" holds is all_reduce
    again, Tutti's two ways side by side."""

    def __init__(self):
        self.times = {}
        self.factors = {}     # (ranks, collective, size): microseconds times this is GB/s of bus bandwidth, inverted
        self.algorithms = {}  # the same key as times
        self.missing = {}     # what could not be measured: why
        self.notes = []       # what was measured less than the rest, and why
        self.plan_walk = None
        self.parts = {}       # section that is no table: what its measure() found

    def add(self, ranks, collective, variant, report):
        for row in report["results"]:
            half = row["out_of_place"]
            if row["size"] == 0 or half is None:
                continue
            key = (ranks, collective, variant, row["size"])
            self.times.setdefault(key, []).append(half["time"])
            self.factors[(ranks, collective, row["size"])] = half["bus_bw"] * half["time"]
            self.algorithms[key] = row["algorithm"]

    def add_limit(self, ranks, report):
        for row in report["results"]:
            self.times.setdefault((ranks, row["work"], "limit", row["size"]), []).append(row["time"])

    def medians(self):
        return {key: statistics.median(times) for key, times in self.times.items()}


class Section:
    """One table: a collective with a number of ranks, several rounds of its variants in turn."""

    def __init__(self, arguments, name, ranks):
        main = name == "all_reduce"
        self.name, self.ranks = name, ranks
        self.collective = "all_reduce" if name == "deterministic" else name
        self.variants = (["tutti registered", "tutti deterministic"] if name == "deterministic"
                           else arguments.variants)
        self.rounds = arguments.rounds or (3 if arguments.quick else 5)
        self.factor = arguments.factor or (2 if main else 4 if name == "deterministic" else 8)
        self.arguments = arguments

    def steps(self):
        return self.rounds * (len(self.variants) + 1)

    def sizes(self, variant):
        arguments = self.arguments
        largest = arguments.max
        if variant == "mpich" and self.ranks > os.cpu_count():
            largest = str(min(parse_size(largest), OVERSUBSCRIBED_MPICH_BYTES))
        return ["-b", arguments.min, "-e", largest, "-f", str(self.factor), "-n", "3", "--time", str(arguments.time)]

    def measure(self, collection, progress):
        arguments = self.arguments
        where = f"{self.name}, {self.ranks} ranks"
        done_without = set()  # variants that have failed, or have had their time
        turn = [*self.variants, "limit"]
        spent = dict.fromkeys(turn, 0.0)
        if "mpich" in self.variants and self.sizes("mpich") != self.sizes("gloo"):
            note = (f"mpich with {self.ranks} ranks on {os.cpu_count()} cores: only to {print_size(OVERSUBSCRIBED_MPICH_BYTES)} "
                    "(its ranks spin, so each message waits for the scheduler)")
            if note not in collection.notes:
                collection.notes.append(note)
        with tempfile.TemporaryDirectory(prefix="tutti_compare_") as folder:
            json_file = os.path.join(folder, "out.json")
            for round_number in range(self.rounds):
                # Another one begins in each round: it bears what is left of whatever ran before it.
                first = round_number % len(turn)
                for variant in turn[first:] + turn[:first]:
                    progress(f"{where}, round {round_number + 1}, {variant}")
                    if variant in done_without:
                        continue
                    if variant == "limit":
                        command = [str(arguments.bin / "roofline_memory"), "--ranks", str(self.ranks),
                                   *self.sizes(variant), "-J", json_file]
                    else:
                        command = [str(arguments.bin / f"{self.collective}_perf"), "--ranks", str(self.ranks),
                                   *self.sizes(variant), *VARIANTS[variant], "--halves", "out", "-w", "2", "-J",
                                   json_file, "-c", "1" if round_number == 0 else "0"]
                        if arguments.cold:
                            command.append("--cold")
                    begun = time.monotonic()
                    report = run_program(command, json_file)
                    spent[variant] += time.monotonic() - begun
                    if isinstance(report, str):
                        done_without.add(variant)
                        collection.missing[f"{variant}, {where}"] = report
                    elif variant == "limit":
                        collection.add_limit(self.ranks, report)
                    else:
                        collection.add(self.ranks, self.name, variant, report)
                    if spent[variant] > arguments.patience and round_number + 1 < self.rounds:
                        done_without.add(variant)
                        collection.notes.append(f"{variant}, {where}: {round_number + 1} of {self.rounds} rounds, which "
                                                f"took {spent[variant]:.0f} s")


def measure_plan_walk(arguments, collection, progress):
    progress("what walking a plan costs")
    with tempfile.TemporaryDirectory(prefix="tutti_compare_") as folder:
        json_file = os.path.join(folder, "out.json")
        report = run_program([str(arguments.bin / "plan_walk_bench"), "-J", json_file], json_file)
    if isinstance(report, str):
        collection.missing["plan_walk"] = report
    else:
        collection.plan_walk = report
