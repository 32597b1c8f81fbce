#!/usr/bin/env python3
"""torch.distributed over Tutti and over its own backends, call by call, through the Python API.

  perf/compare/torch_compare.py --ranks 2 --json calls.json
  perf/compare/torch_compare.py --ranks 4 --max 1M --rounds 3 --only all_reduce,broadcast

The ranks hold a group of each backend at once, and a round goes through all collectives and sizes, the backends in turn
for each: a slow minute of the machine hits all alike. A sample is the mean over enough calls to fill --time seconds, of the slowest rank; what
is reported is the median over the rounds. f32, one thread per rank; sizes are those of nccl-tests: the whole message,
of which a rank holds a part in all_gather_into_tensor (input), reduce_scatter_tensor (output).

It also measures what one call costs, all_reduce of 8 B in place:
  "dist.all_reduce": as users call it; "backend": the backend's method, without what torch.distributed does around it
  (asked of Tutti only); "no backend": dist.all_reduce over torch's fake backend, which does nothing, so what torch
  itself takes.

Needs: torch with Gloo, tutti_torch. MPI is measured where torch was built with it and mpirun started the ranks.
Exit status: 0 good, 1 an error, 2 wrong usage.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

CALLS_AT_MOST, CALLS_AT_LEAST = 2000, 2
COST_CALLS, COST_SAMPLES = 1000, 9


def parse_size(text):
    factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="local processes (not needed under mpirun or torchrun)")
    parser.add_argument("--backends", nargs="+", default=["tutti", "gloo", "mpi"])
    parser.add_argument("--only", default="", help="some of the collectives: A,B")
    parser.add_argument("--min", type=parse_size, default=8)
    parser.add_argument("--max", type=parse_size, default=64 << 20)
    parser.add_argument("--factor", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--time", type=float, default=0.02, help="seconds per sample, about")
    parser.add_argument("--no-cost", action="store_true", help="leave out what one call costs")
    parser.add_argument("--json", help="write the figures to this file [standard output]")
    arguments = parser.parse_args(words)
    arguments.only = [name for name in arguments.only.split(",") if name]
    for name in arguments.only:
        if name not in COLLECTIVES:
            parser.error(f"'{name}' is none of {', '.join(COLLECTIVES)}")
    if min(arguments.ranks, arguments.min, arguments.rounds) < 1 or arguments.factor < 2:
        parser.error("--ranks, --min and --rounds must be at least 1, --factor at least 2")
    return arguments


def sizes_of(arguments):
    sizes = []
    size = arguments.min
    while size <= arguments.max:
        sizes.append(size)
        size *= arguments.factor
    return sizes


# Each makes its tensors of `size` bytes and returns what calls a group once. Movers use bytes, so that every rank has a
# part of the smallest message, too.
def all_reduce(dist, torch, size, ranks):
    x = torch.zeros(max(1, size // 4))
    return lambda group: dist.all_reduce(x, group=group)


def all_gather_into_tensor(dist, torch, size, ranks):
    whole = torch.zeros(size, dtype=torch.uint8)
    part = torch.zeros(size // ranks, dtype=torch.uint8)
    return lambda group: dist.all_gather_into_tensor(whole[:part.numel() * ranks], part, group=group)


def reduce_scatter_tensor(dist, torch, size, ranks):
    part = torch.zeros(max(1, size // 4 // ranks))
    whole = torch.zeros(part.numel() * ranks)
    return lambda group: dist.reduce_scatter_tensor(part, whole, group=group)


def all_to_all_single(dist, torch, size, ranks):
    given = torch.zeros(size // ranks * ranks, dtype=torch.uint8)
    got = torch.zeros_like(given)
    return lambda group: dist.all_to_all_single(got, given, group=group)


def broadcast(dist, torch, size, ranks):
    x = torch.zeros(size, dtype=torch.uint8)
    return lambda group: dist.broadcast(x, 0, group=group)


COLLECTIVES = {function.__name__: function for function in (
    all_reduce, all_gather_into_tensor, reduce_scatter_tensor, all_to_all_single, broadcast)}


class Bench:
    def __init__(self, dist, torch, groups, ranks, sample_seconds):
        self.dist, self.torch, self.groups, self.ranks, self.sample_seconds = dist, torch, groups, ranks, sample_seconds

    def slowest(self, seconds):
        """The largest of all ranks' figures, on all ranks."""
        x = self.torch.tensor([seconds], dtype=self.torch.float64)
        self.dist.all_reduce(x, op=self.dist.ReduceOp.MAX, group=self.groups["gloo"])
        return x.item()

    def sample(self, call, group, calls):
        """Seconds per call on this rank. The barrier is the backend's own, so that ranks begin close to each other."""
        self.dist.barrier(group=group)
        begin = time.perf_counter()
        for _ in range(calls):
            call(group)
        return (time.perf_counter() - begin) / calls

    def prepare(self, name, size):
        """(what calls a group once, {backend: calls in a sample})"""
        call = COLLECTIVES[name](self.dist, self.torch, size, self.ranks)
        calls = {}
        for backend, group in self.groups.items():
            self.sample(call, group, 2)  # connections, first touch
            once = self.slowest(self.sample(call, group, 3))
            calls[backend] = max(CALLS_AT_LEAST, min(CALLS_AT_MOST, int(self.sample_seconds / once)))
        return call, calls

    def measure(self, subjects, rounds):
        """{subject: {backend: seconds per call, one of each round}}. A round goes through all subjects, so that the
        machine's phases, of seconds to minutes, spoil some rounds of each and not all of one."""
        prepared = {subject: self.prepare(*subject) for subject in subjects}
        times = {subject: {backend: [] for backend in self.groups} for subject in subjects}
        turn = list(self.groups)
        for number in range(rounds):
            first = number % len(turn)
            for subject, (call, calls) in prepared.items():
                for backend in turn[first:] + turn[:first]:
                    call(self.groups[backend])  # what lay in the caches was another subject's
                    times[subject][backend].append(self.slowest(self.sample(call, self.groups[backend], calls[backend])))
        return times

    def cost_of_a_call(self, fake):
        """{way: microseconds of all_reduce of 8 B in place}, the ways in turn."""
        dist, torch = self.dist, self.torch
        x = torch.zeros(2)
        options = dist.AllreduceOptions()
        options.asyncOp = False
        backend = self.groups["tutti"]._get_backend(torch.device("cpu"))
        ways = {"dist.all_reduce": lambda: dist.all_reduce(x, group=self.groups["tutti"]),
                "backend": lambda: backend.allreduce([x], options),
                "no backend": lambda: dist.all_reduce(x, group=fake)}
        times = {way: [] for way in ways}
        for number in range(COST_SAMPLES + 1):
            for way, call in ways.items():
                seconds = self.slowest(self.sample(lambda group: call(), self.groups["tutti"], COST_CALLS))
                if number > 0:  # the first is a warm-up
                    times[way].append(1e6 * seconds)
        return {way: statistics.median(values) for way, values in times.items()}


def make_groups(dist, arguments, missing):
    groups = {"gloo": dist.new_group(backend="gloo")}
    for backend in arguments.backends:
        if backend == "mpi" and not (dist.is_mpi_available() and "OMPI_COMM_WORLD_SIZE" in os.environ):
            missing["mpi"] = "this torch was built without MPI" if not dist.is_mpi_available() else "not under mpirun"
        elif backend != "gloo":
            groups[backend] = dist.new_group(backend=backend)
    return groups


def run_rank(rank, arguments, ranks, meeting_place):
    import torch
    import torch.distributed as dist
    import tutti_torch  # noqa: F401

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the ranks are all here; a host's own name may not resolve
    dist.init_process_group("gloo", init_method=meeting_place, rank=rank, world_size=ranks)
    missing = {}
    groups = make_groups(dist, arguments, missing)
    bench = Bench(dist, torch, groups, ranks, arguments.time)
    subjects = [(name, size) for name in arguments.only or COLLECTIVES for size in sizes_of(arguments)]
    results = [{"collective": name, "size": size, "backend": backend, "time_us": 1e6 * statistics.median(times),
                "rounds_us": [1e6 * t for t in times]}
               for (name, size), found in bench.measure(subjects, arguments.rounds).items()
               for backend, times in found.items()]
    cost = None
    if "tutti" in groups and not arguments.no_cost:
        import torch.testing._internal.distributed.fake_pg  # noqa: F401  (registers "fake")
        cost = bench.cost_of_a_call(dist.new_group(backend="fake"))
    report = {"ranks": ranks, "torch": torch.__version__, "results": results, "cost_us": cost, "missing": missing}
    if rank == 0:
        text = json.dumps(report, indent=1) + "\n"
        if arguments.json:
            pathlib.Path(arguments.json).write_text(text)
        else:
            sys.stdout.write(text)
    dist.destroy_process_group()


def main():
    arguments = parse_arguments()
    try:
        import torch.multiprocessing
        import tutti_torch  # noqa: F401
    except ImportError as error:
        sys.exit(f"torch_compare: {sys.executable}: {error}")
    rank, ranks = (os.environ.get(name, os.environ.get(other)) for name, other in (
        ("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")))
    if rank is not None:
        run_rank(int(rank), arguments, int(ranks), "env://")
        return
    with tempfile.TemporaryDirectory(prefix="tutti_torch_") as folder:
        torch.multiprocessing.spawn(run_rank, (arguments, arguments.ranks, f"file://{folder}/meet"), arguments.ranks)


if __name__ == "__main__":
    main()
