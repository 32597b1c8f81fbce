#!/usr/bin/env python3
"""Tutti beside Open MPI, MPICH and Gloo, and the machine's own limit, in one interleaved run.

Every backend runs through the same program (build/bin/<collective>_perf). A round runs each of them once over all
sizes, in turn, so that a slow minute of the machine hits all alike; the figure of a size is the median over rounds.
Writes results.md, results.json and the plots to perf/out/, and says which of the goals are met. --help lists options.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

import compare_goals  # noqa: E402
import compare_plots  # noqa: E402
import compare_tables  # noqa: E402

COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "gather", "scatter",
               "sendrecv"]
REDUCING = {"all_reduce", "reduce_scatter", "reduce"}
# What is compared: the column's name and the program's options.
CONTENDERS = {
    "tutti registered": ["--backend", "tutti", "--memory", "registered"],
    "tutti plain": ["--backend", "tutti", "--memory", "plain"],
    "tutti deterministic": ["--backend", "tutti", "--memory", "registered", "--deterministic"],
    "openmpi": ["--backend", "openmpi", "--memory", "plain"],
    "mpich": ["--backend", "mpich", "--memory", "plain"],
    "gloo": ["--backend", "gloo", "--memory", "plain"],
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 ranks, all_reduce only: about a minute")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "bin", help="where the programs are")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "out", help="where results go")
    parser.add_argument("--ranks", type=int, nargs="+", help="numbers of ranks [2 4]")
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, help="[all]")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), help="[all]")
    parser.add_argument("--rounds", type=int, help="runs of each contender, of which the median counts [5]")
    parser.add_argument("--min", default="8", help="smallest size")
    parser.add_argument("--max", default="64M", help="largest size")
    parser.add_argument("--factor", type=int, default=2, help="between sizes")
    parser.add_argument("--time", type=float, default=0.02, help="seconds per size and run, at least")
    parser.add_argument("--cold", action="store_true", help="move through memory, so that caches do not help")
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.ranks = arguments.ranks or ([2] if quick else [2, 4])
    arguments.collectives = arguments.collectives or (["all_reduce"] if quick else COLLECTIVES)
    arguments.rounds = arguments.rounds or (3 if quick else 5)
    names = [name for name in CONTENDERS if not (quick and name == "tutti deterministic")]
    arguments.contenders = arguments.contenders or names
    return arguments


def run_program(command, json_file):
    """The program's JSON, or a sentence that says why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not end within 900 s"
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return f"exit status {done.returncode}: {lines[-1] if lines else 'no output'}"
    return json.loads(pathlib.Path(json_file).read_text())


class Collection:
    """Times by (ranks, collective, contender, size); each a list over rounds."""

    def __init__(self):
        self.times = {}
        self.factors = {}     # (ranks, collective, size): microseconds times this is GB/s of bus bandwidth, inverted
        self.algorithms = {}  # the same key as times
        self.missing = {}     # contender or "contender collective": why

    def add(self, ranks, collective, contender, report):
        for row in report["results"]:
            half = row["out_of_place"]
            if row["size"] == 0 or half is None:
                continue
            key = (ranks, collective, contender, row["size"])
            self.times.setdefault(key, []).append(half["time"])
            self.factors[(ranks, collective, row["size"])] = half["bus_bw"] * half["time"]
            self.algorithms[key] = row["algorithm"]

    def add_limit(self, ranks, report):
        for row in report["results"]:
            self.times.setdefault((ranks, row["work"], "limit", row["size"]), []).append(row["time"])

    def medians(self):
        return {key: statistics.median(times) for key, times in self.times.items()}


def measure(arguments, collection, progress):
    sizes = ["-b", arguments.min, "-e", arguments.max, "-f", str(arguments.factor), "-n", "3", "--time",
             str(arguments.time)]
    broken = set()
    with tempfile.TemporaryDirectory(prefix="tutti_compare_") as folder:
        json_file = os.path.join(folder, "out.json")
        for ranks in arguments.ranks:
            for collective in arguments.collectives:
                for round_number in range(arguments.rounds):
                    for contender in arguments.contenders:
                        if contender == "tutti deterministic" and collective not in REDUCING:
                            continue
                        progress(f"{ranks} ranks, {collective}, round {round_number + 1}, {contender}")
                        if (contender, collective) in broken:
                            continue
                        command = [str(arguments.bin / f"{collective}_perf"), "--ranks", str(ranks), *sizes,
                                   *CONTENDERS[contender], "--halves", "out", "-w", "2", "-J", json_file,
                                   "-c", "1" if round_number == 0 else "0"]
                        if arguments.cold:
                            command.append("--cold")
                        report = run_program(command, json_file)
                        if isinstance(report, str):
                            broken.add((contender, collective))
                            collection.missing[f"{contender}, {collective}, {ranks} ranks"] = report
                        else:
                            collection.add(ranks, collective, contender, report)
                    progress(f"{ranks} ranks, {collective}, round {round_number + 1}, the machine's limit")
                    if "limit" not in broken:
                        report = run_program([str(arguments.bin / "memory_limit"), "--ranks", str(ranks), *sizes, "-J",
                                              json_file], json_file)
                        if isinstance(report, str):
                            broken.add("limit")
                            collection.missing["the machine's limit"] = report
                        else:
                            collection.add_limit(ranks, report)


def describe_machine(load_before):
    model = "unknown processor"
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {"processor": model, "cores": os.cpu_count(), "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
            "date": time.strftime("%Y-%m-%d %H:%M"), "commit": commit.stdout.strip() or "unknown",
            "load_before": load_before}


def make_progress(arguments):
    """A function that tells each step on one line of the terminal, with how far we are and how long it will take."""
    steps = 0
    for collective in arguments.collectives:
        left_out = "tutti deterministic" in arguments.contenders and collective not in REDUCING
        steps += len(arguments.ranks) * arguments.rounds * (len(arguments.contenders) + 1 - left_out)
    start = time.monotonic()
    done = 0

    def progress(text):
        nonlocal done
        elapsed = time.monotonic() - start
        left = f", {elapsed / done * (steps - done):.0f} s left" if done else ""
        line = f"[{done}/{steps}] {text}{left}"
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        elif done % 10 == 0:
            print(line, file=sys.stderr, flush=True)
        done += 1

    return progress


def main():
    arguments = parse_arguments()
    collection = Collection()
    load_before = round(os.getloadavg()[0], 2)
    measure(arguments, collection, make_progress(arguments))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if not collection.times:
        sys.exit(f"compare: nothing could be measured: {next(iter(collection.missing.values()), 'nothing was asked for')}")
    medians = collection.medians()
    goals = compare_goals.evaluate(medians, arguments.ranks)
    machine = describe_machine(load_before)
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = compare_tables.write_table(machine, arguments, collection, medians, goals)
    (arguments.out / "results.md").write_text(table)
    (arguments.out / "results.json").write_text(compare_tables.write_json(machine, arguments, collection, medians, goals))
    print(table)
    for line in compare_plots.draw(arguments, collection, medians):
        print(line)
    print(f"table: {arguments.out / 'results.md'}, figures: {arguments.out / 'results.json'}")


if __name__ == "__main__":
    main()
