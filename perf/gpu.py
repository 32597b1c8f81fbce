#!/usr/bin/env python3
"""The benchmarks on GPU memory: whether their results are right, and how fast they are.

    perf/gpu.py check                # every collective, type and operation on threads and processes, with and without graphs
    perf/gpu.py bench                # tables, plots and the raw JSON in perf/results/<machine>/<date>-<commit>/
    perf/gpu.py draw --out FOLDER    # the tables and plots again, of what lies there: on any machine

All of it on the GPUs that there are, of which the ranks get one each in turn: with one GPU all share it. Beside the
collectives stand, measured in the same run: the GPU's own copy (as many bytes read and written as a collective must move
at least), plain host loops of copies and an add kernel, and NCCL where it can run: ranks on GPUs of their own, or, from
NCCL 2.30.3 on, two ranks that share one (NCCL_MULTI_RANK_GPU_ENABLE=1, experimental there). --nccl FOLDER gives a NCCL.

bench ends with status 75 when its --budget is over, and --resume goes on where it was. It begins with what the goals are about.
"""
import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "compare")]

import compare  # noqa: E402
import compare_measure  # noqa: E402
import gpu_results  # noqa: E402
import gpu_tables  # noqa: E402

PROGRAMS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "gather", "scatter", "sendrecv"]
MEASURED = ["all_reduce", "all_gather", "reduce_scatter"]
DEVICE = ["--memory", "device"]
GOALS = [2, 4]  # numbers of ranks that the goals are about
NCCL_SHARES_SINCE = (2, 30, 3)
MORE = 75  # exit status of bench when its time was over before it was done


def placement(kind, ranks):
    """The options that start so many ranks; one rank is a process in either case."""
    return ["-t", str(ranks)] if kind == "threads" else ["--ranks", str(ranks)]


def checks(most="3M", seconds=60):
    """(name, program, options) of runs whose results are compared; they end with an error when one is wrong, or when a call
    takes so many seconds. Each program once comes before any of them for the second time."""
    short = [*DEVICE, "-n", "1", "-w", "0", "-c", "1", "-T", str(seconds)]
    step = str(compare_measure.parse_size(most) // 4 | 1)  # so that no size is a whole number of vectors

    def sizes(kind, ranks):
        return f"{kind} {ranks}", [*placement(kind, ranks), "-b", "0", "-e", most, "-i", step]

    everything = ["-b", "12K", "-e", "12K", "-d", "all", "-o", "all"]
    reductions = ["all_reduce", "reduce_scatter", "reduce"]
    wanted = [
        (PROGRAMS, *sizes("threads", 2)), (PROGRAMS, *sizes("processes", 2)),
        (reductions, "all types and operations", ["-t", "3", *everything]),
        (PROGRAMS, "small", ["-t", "4", "-b", "4", "-e", "64K", "-f", "2"]),
        (PROGRAMS, "unaligned", ["-t", "3", "-b", "1", "-e", "100K", "-i", "33333", "-u", "3"]),
        (PROGRAMS, "graph", ["-t", "2", "-b", "8", "-e", "1M", "-f", "32", "-G", "3"]),
        (PROGRAMS, *sizes("threads", 3)), (PROGRAMS, *sizes("processes", 4)), (PROGRAMS, *sizes("threads", 8)),
        (reductions, "deterministic", ["-t", "4", "--deterministic", *everything]),
        # Threads that share a GPU may not share its legacy stream.
        (PROGRAMS, "legacy stream", ["--ranks", "2", "-b", "64K", "-e", "64K", "-y", "1"])]
    return [(f"{program} {name}", program, [*options, *short]) for programs, name, options in wanted for program in programs]


def measurement(arguments, collective, kind, ranks, how, start):
    """(key, program, options): one program, from 8 B to the largest size by a factor of 2. `start`: the options of its ranks."""
    # Results are compared where the goals are; check looks at the others.
    options = [*start, *DEVICE, "-b", "8", "-e", arguments.max or "1G", "-f", "2", "-w", "5", "--halves", "out", "-T", "120",
               "-c", "1" if ranks in GOALS else "0"]
    # Each launch of the graph has 20 calls.
    options += ["-G", "5", "-n", "20"] if how == "graph" else ["--time", str(arguments.time), "-n", "5"]
    return (collective, kind, ranks, how), f"{collective}_perf", options


def benches(arguments, gpus):
    runs = []
    for kind, counts in [("threads", arguments.threads), ("processes", arguments.processes)]:
        for ranks in counts:
            # Calls of processes that share a GPU cannot be captured.
            hows = ["graph", "launch"] if kind == "threads" or ranks <= gpus else ["launch"]
            runs += [measurement(arguments, collective, kind, ranks, how, placement(kind, ranks))
                     for collective in arguments.collectives for how in hows]
    return sorted(runs, key=lambda each: each[0][1] != "threads" or each[0][2] not in GOALS)


def nccl_version(folder):
    """(2, 28, 9) of the libnccl.so.2 in the folder, or of the one that the loader finds; None without one."""
    if preloaded := os.environ.get("LD_PRELOAD"):
        raise RuntimeError(f"LD_PRELOAD is {preloaded}: that is what would be measured as NCCL")
    try:
        library = ctypes.CDLL(str(folder / "libnccl.so.2") if folder else "libnccl.so.2")
        number = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    if hasattr(library, "tutti_nccl_version"):
        return None
    return number.value // 10000, number.value // 100 % 100, number.value % 100


def nccl_runs(arguments, gpus):
    """(ranks, environment, what it is) of NCCL as a baseline. Raises RuntimeError: why it cannot be one."""
    version = nccl_version(arguments.nccl_folder)
    if version is None:
        raise RuntimeError(f"there is no NCCL {f'in {arguments.nccl_folder}' if arguments.nccl_folder else 'where the loader looks'}"
                           "; --nccl FOLDER says where")
    text = "NCCL " + ".".join(str(part) for part in version)
    environment = {}
    if arguments.nccl_folder:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(
            [str(arguments.nccl_folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    if gpus > 1:
        return gpus, environment, text
    if version < NCCL_SHARES_SINCE:
        raise RuntimeError(f"{text} wants a GPU for each rank, and there is one; {'.'.join(map(str, NCCL_SHARES_SINCE))} or newer "
                           "lets ranks share it: --nccl FOLDER")
    return 2, {**environment, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}, f"{text}, 2 ranks that share a GPU (experimental there)"


def run(program, options, timeout, environment=None):
    """What it printed. Raises RuntimeError with one sentence."""
    try:
        done = subprocess.run([program, *options], capture_output=True, text=True, timeout=timeout,
                              env={**os.environ, **(environment or {})})
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"did not end within {timeout} s") from None
    except OSError as error:
        raise RuntimeError(f"{program}: {error.strerror}") from None
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no output"]
        raise RuntimeError(f"exit status {done.returncode}: {lines[0]}")
    return done.stdout


def check(arguments):
    """How many are wrong."""
    failed = 0
    runs = checks(arguments.max or "3M")
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


def planned(arguments, machine):
    """(key, program, options, environment) of all that is measured, and why NCCL is not (None when it is)."""
    limits = [(("device", "limit", ranks, "loops"), "roofline_device",
               ["--ranks", str(ranks), "-b", "8", "-e", arguments.max or "1G", "-f", "2", "--time", str(arguments.time / 2)], None)
              for ranks in sorted({*arguments.threads, *arguments.processes}) if ranks > 1]
    # What the goals are about comes first, should the time be over.
    gpus = len(machine["gpus"])
    wanted = [*limits, *((*each, None) for each in benches(arguments, gpus))]
    if arguments.no_nccl:
        return wanted, None
    try:
        ranks, environment, machine["nccl"] = nccl_runs(arguments, gpus)
    except RuntimeError as error:
        return wanted, str(error)
    start = ["--ranks", str(ranks), "--backend", "nccl"]
    wanted += [(*measurement(arguments, name, "nccl", ranks, how, start), environment)
               for name in arguments.collectives for how in ("graph", "launch")]
    return wanted, None


def bench(arguments):
    machine = machine_of(arguments)
    results = gpu_results.Results(arguments.out or HERE / "results" / folder_name(machine))
    wanted, why_no_nccl = planned(arguments, machine)
    try:
        results.begin(machine, arguments.resume)
    except RuntimeError as error:
        print(f"gpu bench: {error}", file=sys.stderr)
        return 1
    if not arguments.no_nccl:
        results.machine["nccl"] = machine.get("nccl")
    start, late, failed = time.monotonic(), 0, 0
    for key, program, options, environment in wanted:
        if results.rows(key) is not None:
            results.miss(key, None)
            continue
        left = arguments.budget - (time.monotonic() - start) if arguments.budget else arguments.timeout
        try:
            if left <= 0:
                raise RuntimeError(f"the time given ({arguments.budget:g} s) was over")
            path = results.path(key)
            path.unlink(missing_ok=True)
            run(arguments.bin / program, [*options, "-J", str(path)], min(arguments.timeout, left), environment)
            if results.rows(key) is None:
                raise RuntimeError("it has written no results")
            results.miss(key, None)
            print(f"{gpu_results.name_of(key)}: done after {time.monotonic() - start:.0f} s", flush=True)
        except RuntimeError as error:
            if arguments.budget and time.monotonic() - start >= arguments.budget:
                late += 1  # what was cut off, too
            else:
                failed += 1
            results.miss(key, str(error))
            print(f"{gpu_results.name_of(key)}: {error}", flush=True)
    if not arguments.no_nccl:
        results.miss(("nccl",), why_no_nccl)
    if late:
        print(f"gpu bench: {late} of {len(wanted)} programs are left; --resume goes on with them", file=sys.stderr)
    nothing = report(results)
    return MORE if late else int(bool(nothing or failed))


def report(results):
    """Tables and plots of all that lies in the folder."""
    times, limits = results.read()
    if not times or not results.machine:
        print(f"gpu: nothing has been measured in {results.out}: {next(iter(results.missing.values()), 'nothing was asked for')}",
              file=sys.stderr)
        return 1
    text = gpu_tables.write(results.machine, times, limits, results.missing)
    (results.out / "results.md").write_text(text)
    print(text)
    for line in gpu_tables.draw(times, limits, results.out):
        print(line)
    print(f"results: {results.out}")
    return 0


def draw(arguments):
    if arguments.out is None:
        print("gpu draw: expected --out FOLDER, where bench has left its results", file=sys.stderr)
        return 1
    return report(gpu_results.Results(arguments.out))


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["check", "bench", "draw"])
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parent / "build-gpu" / "bin", help="where the programs are")
    parser.add_argument("--out", type=pathlib.Path, help="where results go [perf/results/<machine>/<date>-<commit>]")
    parser.add_argument("--collectives", nargs="+", choices=MEASURED, default=MEASURED)
    parser.add_argument("--threads", nargs="*", type=int, default=[*range(1, 9)], help="numbers of ranks as threads [1 to 8]")
    parser.add_argument("--processes", nargs="*", type=int, default=[*range(2, 9)], help="numbers of ranks as processes [2 to 8]")
    parser.add_argument("--max", help="largest size [check: 3M; bench: 1G]")
    parser.add_argument("--time", type=float, default=0.05, help="seconds per figure, at least [0.05]")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a program may take [300]")
    parser.add_argument("--resume", action="store_true", help="leave out what has been measured already, into the same --out")
    parser.add_argument("--budget", type=float, default=0, help="seconds after which it ends; 0: no such end [0]")
    parser.add_argument("--no-nccl", action="store_true", help="measure no NCCL")
    parser.add_argument("--nccl", dest="nccl_folder", type=pathlib.Path, metavar="FOLDER",
                        help="with the libnccl.so.2 to measure [what the loader finds]")
    return parser.parse_args(words)


def main():
    arguments = parse_arguments()
    if arguments.command == "check":
        sys.exit(1 if check(arguments) else 0)
    sys.exit({"bench": bench, "draw": draw}[arguments.command](arguments))


if __name__ == "__main__":
    main()
