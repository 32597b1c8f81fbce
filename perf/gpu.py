#!/usr/bin/env python3
"""The benchmarks on GPU memory: whether their results are right, and how fast they are.

    perf/gpu.py check                # every collective, type and operation on threads and processes, with and without graphs
    perf/gpu.py bench                # tables, plots and the raw JSON in perf/results/<machine>/<date>-<commit>/

All of it on the GPUs that there are, of which the ranks get one each in turn: with one GPU all share it. Beside the
collectives stand, measured in the same run: the GPU's own copy (as many bytes read and written as a collective must move
at least), a plain host loop of copies and an add kernel, and NCCL where it can run (ranks on GPUs of their own).
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import compare  # noqa: E402
import gpu_tables  # noqa: E402

PROGRAMS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "gather", "scatter", "sendrecv"]
MEASURED = ["all_reduce", "all_gather", "reduce_scatter"]
DEVICE = ["--memory", "device"]


def placement(kind, ranks):
    """The options that start so many ranks; one rank is a process in either case."""
    return ["-t", str(ranks)] if kind == "threads" else ["--ranks", str(ranks)]


def checks():
    """(name, program, options) of runs whose results are compared; they end with an error when one is wrong."""
    short = [*DEVICE, "-n", "1", "-w", "0", "-c", "1", "-T", "60"]
    runs = []
    for program in PROGRAMS:
        for kind, ranks in [("threads", 2), ("threads", 3), ("threads", 8), ("processes", 2), ("processes", 4)]:
            runs.append((f"{program} {kind} {ranks}", program, [*placement(kind, ranks), "-b", "0", "-e", "3M", "-i", "777777", *short]))
        runs.append((f"{program} small", program, ["-t", "4", "-b", "4", "-e", "64K", "-f", "2", *short]))
        runs.append((f"{program} unaligned", program, ["-t", "3", "-b", "1", "-e", "100K", "-i", "33333", "-u", "3", *short]))
        runs.append((f"{program} graph", program, ["-t", "2", "-b", "8", "-e", "1M", "-f", "32", "-G", "3", *short]))
        runs.append((f"{program} legacy stream", program, ["-t", "2", "-b", "64K", "-e", "64K", "-y", "1", *short]))
    for program in ["all_reduce", "reduce_scatter", "reduce"]:
        everything = ["-b", "12K", "-e", "12K", "-d", "all", "-o", "all", *short]
        runs.append((f"{program} all types and operations", program, ["-t", "3", *everything]))
        runs.append((f"{program} deterministic", program, ["-t", "4", "--deterministic", *everything]))
    return runs


def benches(arguments):
    """(key, program, options), the key being (collective, kind, ranks, graph)."""
    runs = []
    sizes = ["-b", "8", "-e", arguments.max, "-f", "4", *DEVICE, "-w", "5", "--halves", "out", "-T", "120"]
    for collective in arguments.collectives:
        for kind, counts in [("threads", arguments.threads), ("processes", arguments.processes)]:
            for ranks in counts:
                for graph in [0, 5] if kind == "threads" else [0]:
                    # Each launch of the graph has 20 calls.
                    how = ["-G", str(graph), "-n", "20"] if graph else ["--time", str(arguments.time), "-n", "5"]
                    runs.append(((collective, kind, ranks, "graph" if graph else "launch"), f"{collective}_perf",
                                 [*placement(kind, ranks), *sizes, *how]))
    return runs


def run(program, options, timeout):
    """What it printed. Raises RuntimeError with one sentence."""
    try:
        done = subprocess.run([program, *options], capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"did not end within {timeout} s") from None
    except OSError as error:
        raise RuntimeError(f"{program}: {error.strerror}") from None
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no output"]
        raise RuntimeError(f"exit status {done.returncode}: {lines[0]}")
    return done.stdout


def check(arguments):
    failed = 0
    runs = checks()
    for name, program, options in runs:
        try:
            run(arguments.bin / f"{program}_perf", options, arguments.timeout)
        except RuntimeError as error:
            failed += 1
            print(f"WRONG {name}: {error}\n      {program}_perf {' '.join(options)}", flush=True)
    print(f"gpu check: {len(runs)} runs, {failed} wrong")
    return failed


def machine_of(arguments):
    machine = compare.describe_machine(None)
    info = json.loads(run(arguments.bin / "tutti", ["info", "--json"], 60))
    machine["gpus"] = info["gpus"].get("gpus", [])
    return machine


def folder_name(machine):
    names = {gpu["name"] for gpu in machine["gpus"]}
    slug = "-".join(sorted(names)).lower().replace(" ", "-") or "no-gpu"
    return pathlib.Path(f"{slug}-x{len(machine['gpus'])}") / f"{machine['date'][:10]}-{machine['commit']}"


def bench(arguments):
    machine = machine_of(arguments)
    out = arguments.out or HERE / "results" / folder_name(machine)
    raw = out / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    times, limits, missing = {}, {}, {}
    wanted = [(key, program, options) for key, program, options in benches(arguments)]
    most_ranks = sorted({2, 4, *arguments.threads})
    wanted = [(("limit", "device", ranks, ""), "device_limit", ["--ranks", str(ranks), "-b", "8", "-e", arguments.max, "-f", "2",
                                                                "--time", str(arguments.time)])
              for ranks in most_ranks if ranks > 1] + wanted
    if arguments.nccl and len(machine["gpus"]) > 1:
        ranks = len(machine["gpus"])
        sizes = ["-b", "8", "-e", arguments.max, "-f", "4", *DEVICE, "-w", "5", "--halves", "out", "--time", str(arguments.time)]
        wanted += [((name, "nccl", ranks, "launch"), f"{name}_perf", ["--ranks", str(ranks), "--backend", "nccl", *sizes])
                   for name in arguments.collectives]
    for key, program, options in wanted:
        name = "_".join(str(word) for word in key if word != "")
        if arguments.budget and time.monotonic() - start > arguments.budget:
            missing[name] = f"the time given ({arguments.budget} s) was over"
            continue
        path = raw / f"{name}.json"
        try:
            run(arguments.bin / program, [*options, "-J", str(path)], arguments.timeout)
            rows = json.loads(path.read_text())["results"]
        except RuntimeError as error:
            missing[name] = str(error)
            print(f"{name}: {error}", flush=True)
            continue
        if key[0] == "limit":
            limits[key[2]] = {row["size"]: row for row in rows}
        else:
            times[key] = {row["size"]: row["out_of_place"] for row in rows}
        print(f"{name}: done after {time.monotonic() - start:.0f} s", flush=True)
    if not times:
        print(f"gpu bench: nothing could be measured: {next(iter(missing.values()), 'nothing was asked for')}", file=sys.stderr)
        return 1
    text = gpu_tables.write(machine, times, limits, missing)
    (out / "results.md").write_text(text)
    print(text)
    for line in gpu_tables.draw(times, limits, out):
        print(line)
    print(f"results: {out}")
    return 0


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["check", "bench"])
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parent / "build-gpu" / "bin", help="where the programs are")
    parser.add_argument("--out", type=pathlib.Path, help="where results go [perf/results/<machine>/<date>-<commit>]")
    parser.add_argument("--collectives", nargs="+", choices=MEASURED, default=MEASURED)
    parser.add_argument("--threads", nargs="*", type=int, default=[2, 4, 8], help="numbers of ranks as threads [2 4 8]")
    parser.add_argument("--processes", nargs="*", type=int, default=[2, 4], help="numbers of ranks as processes [2 4]")
    parser.add_argument("--max", default="1G", help="largest size [1G]")
    parser.add_argument("--time", type=float, default=0.05, help="seconds per figure, at least [0.05]")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a program may take [300]")
    parser.add_argument("--budget", type=float, default=0, help="seconds after which no more is begun; 0: no end [0]")
    parser.add_argument("--no-nccl", dest="nccl", action="store_false", help="leave NCCL out")
    return parser.parse_args(words)


def main():
    arguments = parse_arguments()
    sys.exit(1 if {"check": check, "bench": bench}[arguments.command](arguments) else 0)


if __name__ == "__main__":
    main()
