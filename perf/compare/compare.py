#!/usr/bin/env python3
"""Compares Tutti with its baselines (Open MPI, MPICH, Gloo) and with the machine's limit, in one interleaved run.

Every variant, Tutti's and the baselines', runs through the same program (build/bin/<collective>_perf). A round runs each
of them once over all sizes, in turn, so that a slow minute of the machine hits all alike. The figure of a size is the
median over the rounds. Sections that are no collective:
  deterministic      the price of the same bits everywhere
  plan_walk          what walking a plan costs
  training_steps     step times of a small GPT, compared with PyTorch's own DDP and FSDP2
  training_overlap   what hides behind backward over a slow link
  training_memory    bytes per rank
  torch              the PyTorch backend: torch.distributed over Tutti and over Gloo
  hosts              the same variants between network namespaces
`training` stands for the three of its name. Writes results.md, results.json and the plots to perf/out/, and says which
goals are met.
"""
import argparse
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import time

import compare_goals
import compare_hosts
import compare_memory
import compare_overlap
import compare_plots
import compare_tables
import compare_torch
import compare_training
from compare_measure import COLLECTIVES, TUTTI_AND_BASELINES, VARIANTS, Collection, Section, measure_plan_walk

PERF = pathlib.Path(__file__).resolve().parent.parent
ROOT = PERF.parent
TRAINING = {"training_steps": compare_training, "training_overlap": compare_overlap, "training_memory": compare_memory}
PARTS = {**TRAINING, "torch": compare_torch, "hosts": compare_hosts}
TABLES = COLLECTIVES + ["deterministic"]
SECTIONS = TABLES + ["plan_walk", *PARTS]
GROUPS = {"training": list(TRAINING)}


def section_list(text):
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in SECTIONS and name not in GROUPS:
            raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join([*SECTIONS, *GROUPS])}")
    return [section for name in names for section in GROUPS.get(name, [name])]


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", type=section_list, metavar="SECTION",
                        help=f"what to measure [all]: {', '.join([*SECTIONS, *GROUPS])}")
    parser.add_argument("--only", type=section_list, default=[], metavar="A,B", help="the same, as one word")
    parser.add_argument("--quick", action="store_true", help="2 ranks, all_reduce only: about a minute")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "bin", help="where the programs are")
    parser.add_argument("--out", type=pathlib.Path, default=PERF / "out", help="where results go")
    parser.add_argument("--save", nargs="?", type=pathlib.Path, const=PERF / "results", metavar="DIR",
                        help="instead: in DIR/<machine>/<date>-<commit>/ [perf/results]")
    parser.add_argument("--ranks", type=int, nargs="+", help="numbers of ranks [2 4]")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), metavar="NAME",
                        help=f"Tutti's and the baselines', of {', '.join(VARIANTS)} [all but deterministic]")
    parser.add_argument("--contenders", nargs="+", choices=list(VARIANTS), help=argparse.SUPPRESS)  # until 0.3
    parser.add_argument("--rounds", type=int, help="runs of each variant, of which the median counts [5; --quick 3]")
    parser.add_argument("--min", default="8", help="smallest size")
    parser.add_argument("--max", default="64M", help="largest size")
    parser.add_argument("--factor", type=int, help="between sizes [all_reduce 2, deterministic 4, the others 8]")
    parser.add_argument("--time", type=float, default=0.02, help="seconds per size and run, at least")
    parser.add_argument("--patience", type=float, default=45, help="seconds that one variant may take in a section: "
                        "after that it gets no more rounds")
    parser.add_argument("--congestion", metavar="NAME", type=compare_hosts.on_hosts.congestion_control,
                        help="of section hosts: TCP's congestion control, such as reno [the kernel's own]")
    parser.add_argument("--shapes", type=compare_hosts.shape_list, default=compare_hosts.SHAPES, metavar="2x1,2x2",
                        help="of section hosts: hosts and ranks on each [2x1,2x2,4x1]")
    parser.add_argument("--cold", action="store_true", help="move through memory, so that caches do not help")
    arguments = parser.parse_args(words)
    if arguments.contenders:
        print("compare: --contenders is now --variants, and goes with the next release", file=sys.stderr)
        arguments.variants = arguments.variants or arguments.contenders
    quick = arguments.quick
    chosen = [name for names in [*arguments.sections, arguments.only] for name in names]
    arguments.sections = [name for name in SECTIONS if name in chosen] or (["all_reduce"] if quick else SECTIONS)
    arguments.ranks = arguments.ranks or ([2] if quick else [2, 4])
    arguments.variants = arguments.variants or TUTTI_AND_BASELINES
    arguments.tables = [name for name in arguments.sections if name in TABLES]
    return arguments


def measure(arguments, collection):
    sections = [Section(arguments, name, ranks) for ranks in arguments.ranks for name in arguments.tables]
    steps = sum(section.steps() for section in sections)
    steps += "plan_walk" in arguments.sections
    steps += sum(part.steps(arguments) for name, part in PARTS.items() if name in arguments.sections)
    progress = make_progress(steps)
    if "plan_walk" in arguments.sections:
        measure_plan_walk(arguments, collection, progress)
    for section in sections:
        section.measure(collection, progress)
    for name, part in PARTS.items():
        if name in arguments.sections:
            part.measure(arguments, collection, progress)


def commit():
    """Of this tree; TUTTI_COMMIT says it where git does not know."""
    if given := os.environ.get("TUTTI_COMMIT"):
        return given
    try:
        done = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"], capture_output=True,
                              text=True)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def describe_machine(load_before):
    model = "unknown processor"
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {"processor": model, "cores": os.cpu_count(), "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
            "date": time.strftime("%Y-%m-%d %H:%M"), "commit": commit(),
            "load_before": load_before}


def folder_name(machine):
    """<machine>/<date>-<commit>: the machine by what it is, since its name means nothing to others."""
    model = re.sub(r"\([^)]*\)|@.*|\b(CPU|Processor)\b", " ", machine["processor"])
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return pathlib.Path(f"{slug}-{machine['cores']}-cores") / f"{machine['date'][:10]}-{machine['commit']}"


def make_progress(steps):
    """A function that tells each step on one line of the terminal, with how far we are and how long it will take."""
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was made is removed
    collection = Collection()
    machine = describe_machine(round(os.getloadavg()[0], 2))
    if arguments.save:
        arguments.out = arguments.save / folder_name(machine)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)  # before the work, so that none is lost
    except OSError as error:
        sys.exit(f"compare: results cannot go to {arguments.out}: {error.strerror}; expected a folder")
    measure(arguments, collection)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if not (collection.times or collection.plan_walk or collection.parts):
        sys.exit(f"compare: nothing could be measured: {next(iter(collection.missing.values()), 'nothing was asked for')}")
    medians = collection.medians()
    goals = compare_goals.evaluate(medians, arguments.ranks)
    for name, part in PARTS.items():
        goals += part.goals(collection.parts[name]) if name in collection.parts else []
    tables = [part.table(collection.parts[name]) for name, part in PARTS.items() if name in collection.parts]
    table = compare_tables.write_table(machine, arguments, collection, medians, goals, tables)
    (arguments.out / "results.md").write_text(table)
    (arguments.out / "results.json").write_text(compare_tables.write_json(machine, arguments, collection, medians, goals))
    print(table)
    drawings = [(part.draw, collection.parts[name]) for name, part in PARTS.items() if name in collection.parts]
    if collection.times or drawings:
        for line in compare_plots.draw(arguments, collection, medians, drawings):
            print(line)
    print(f"table: {arguments.out / 'results.md'}, figures: {arguments.out / 'results.json'}")


if __name__ == "__main__":
    main()
