"""Hosts that are network namespaces (scripts/hosts.py): Tutti compared with Open MPI, MPICH and Gloo, all over TCP, by
the same programs, with links as fast as the machine makes them and with links of 1 Gbit/s."""
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import hosts as on_hosts  # noqa: E402
import compare_plots  # noqa: E402
from compare_goals import BASELINES, KIB, MIB, geometric_mean, print_size  # noqa: E402
from compare_measure import describe_failure  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
SHAPES = [(2, 1), (2, 2), (4, 1)]  # hosts, ranks on each
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall"]
RATE = "1gbit"
# Least, largest, factor. With two ranks four points from 64 KiB on, with more (whose large messages take longest) three.
# A message that is cut into blocks of 16 bytes begins with one for each rank.
SIZES_OF_TWO = ("4", "64M", "8")
SIZES_OF_MORE = ("64", "64M", "32")
SLOW_SIZES = ("64K", "16M", "16")
TUTTI = "tutti registered"
MEMORY = {TUTTI: "registered"}
# A run may find the kernel in a state in which all its messages are twice as dear, and the next one not: many short runs.
ROUNDS, SLOW_ROUNDS = 5, 2
# With two ranks and up to 4 KiB all take nearly the same; losing eight rounds is no chance.
SMALL_ROUNDS, SMALL = 9, "4K"
AT_THE_LIMIT = 0.99  # of what a link carries: there a hundredth more or less says nothing
TIMEOUT = 30      # of one run
# Seconds for a row of two ranks, or over a link of limited rate. A machine that is lent may lose half of its cores for a
# fifth of a second now and then, which a much shorter row may fall into whole.
LONG_ROW = 0.15
ROW_OF_MORE = 0.1  # of four ranks, whose tables are many
# The median over parts leaves such times out; but of ranks that share cores it would leave out that they wait for them.
PARTS_OF_TWO = 30
BUDGET = 1500     # seconds: when they are over every table gets one round only
PATIENCE = 8      # seconds that a variant may take in one round of a table: after that it gets no more
# MPICH's largest where ranks are more than cores, without and with a limit: perf/README.md says why.
OVERSUBSCRIBED_BYTES = {None: "4K", RATE: "1M"}
COLOURS = {TUTTI: "#c0392b", "openmpi": "#2471a3", "mpich": "#17a589", "gloo": "#7d8b8c", "tcp": "black"}
WITH_US = ["setpriv", "--pdeathsig", "KILL"]  # who starts MPI's launcher so takes it along when killed
VARIABLES = {
    TUTTI: {"TUTTI_NETWORK": os.environ.get("TUTTI_NETWORK", "tcp")},
    "gloo": {},
    # By default these are chosen here, too; so that another build of it measures the same.
    "openmpi": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,vader,self"},
    "mpich": {},
}
# Where ranks are more than cores: each of Open MPI's takes its host for one of its own, and spins.
OVERSUBSCRIBED_VARIABLES = {"openmpi": {"OMPI_MCA_mpi_yield_when_idle": "1"}}


def shape_list(text):
    """[(hosts, ranks on each)] of "2x1,2x2"."""
    return [tuple(int(number) for number in shape.split("x")) for shape in text.split(",")]


def host_bytes(collective, hosts, each):
    """What a host must send at least, over the size that the program prints. (Broadcast: the root's host.)"""
    ranks = hosts * each
    return {"all_reduce": 2 * (hosts - 1) / hosts, "all_gather": (hosts - 1) / hosts,
            "reduce_scatter": (hosts - 1) / hosts, "broadcast": 1, "alltoall": each * (ranks - each) / ranks}[collective]


def plan(arguments):
    """(hosts, ranks on each, rate, collective, rounds, further rounds of small sizes) of each table."""
    tables = []
    for hosts, each in arguments.shapes:
        for rate in (None, RATE):
            for collective in COLLECTIVES:
                rounds = arguments.rounds or (SLOW_ROUNDS if rate else ROUNDS)
                many = hosts * each == 2 and rate is None and not arguments.rounds
                tables.append((hosts, each, rate, collective, rounds, SMALL_ROUNDS - rounds if many else 0))
    return tables


def is_oversubscribed(shape):
    """The hosts are one machine, whose cores they share."""
    return shape[0] * shape[1] > os.cpu_count()


def variants_of(arguments):
    return [name for name in [TUTTI, *BASELINES] if name in arguments.variants]


def steps(arguments):
    return sum((rounds + small) * (len(variants_of(arguments)) + 1) for *_, rounds, small in plan(arguments))


def sizes_of(shape, rate):
    hosts, each = shape
    return SLOW_SIZES if rate else SIZES_OF_TWO if hosts * each == 2 else SIZES_OF_MORE


def control_of(arguments):
    return arguments.congestion or pathlib.Path(on_hosts.CONGESTION).read_text().strip()


def row_of(arguments, shape, rate):
    """Seconds and parts of a row."""
    two = shape[0] * shape[1] == 2
    return max(arguments.time, LONG_ROW if two or rate else ROW_OF_MORE), PARTS_OF_TWO if two else 1


def command_of(arguments, variant, shape, collective, rate, json_file, number, is_small):
    least, most, factor = sizes_of(shape, rate)
    if is_small:
        most = SMALL
    elif variant == "mpich" and is_oversubscribed(shape):
        most = OVERSUBSCRIBED_BYTES[rate]
    seconds, parts = row_of(arguments, shape, rate)
    return [str(arguments.bin / f"{collective}_perf"), "--backend", variant.split()[0], "--memory",
            MEMORY.get(variant, "plain"), "-b", least, "-e", most, "-f", factor, "-n", "3", "--time",
            str(seconds), "--parts", str(parts), "-w", "2", "-a", "3", "--halves", "out", "-c", "1" if number == 0 else "0", "-J",
            json_file]


def start(machine, each, variant, command, output):
    """The processes of one run; MPI's ranks are started by MPI's own launcher on the first host."""
    variables = VARIABLES[variant]
    if is_oversubscribed((len(machine.names), each)):
        variables = {**variables, **OVERSUBSCRIBED_VARIABLES.get(variant, {})}
    if variant in ("gloo", TUTTI):
        return machine.start_ranks(each, command, variables, stdout=output, stderr=output)
    names = machine.names
    ranks = str(each * len(names))
    if variant == "openmpi":
        launcher = ["mpirun.openmpi", "--bind-to", "none", "-n", ranks, "--host",
                    ",".join(f"{name}:{each}" for name in names)]
    else:
        launcher = ["mpiexec.mpich", "-n", ranks, "-hosts", ",".join(f"{name}:{each}" for name in names)]
    environment = {**os.environ, **machine.environment(), **variables, "TUTTI_LAUNCHED": "1"}
    return [subprocess.Popen(machine.enter(0, *WITH_US, *launcher, *command), env=environment, stdout=output, stderr=output,
                             start_new_session=True)]


def run(machine, each, variant, command, json_file):
    """The program's rows, or a sentence that says why there are none."""
    name = os.path.basename(command[0])
    with tempfile.TemporaryFile("w+") as output:
        try:
            processes = start(machine, each, variant, command, output)
        except OSError as error:
            return f"{name}: {error.strerror}"
        status = on_hosts.wait_for(processes, TIMEOUT)
        machine.clear()
        output.seek(0)
        if status == 0:
            return json.loads(pathlib.Path(json_file).read_text())["results"]
        if status == 128 + signal.SIGKILL:
            return f"{name} did not end within {TIMEOUT} s"
        return describe_failure(subprocess.CompletedProcess(command, status, "", output.read()), name)


def measure_tcp(machine, rate, seconds, parts, json_file):
    """Microseconds by size of TCP alone, between the first two hosts, both ways at once."""
    program = str(HERE / "roofline_tcp.py")
    least, most, factor = sizes_of(SHAPES[0], rate)
    with tempfile.TemporaryFile("w+") as output:
        server = subprocess.Popen(machine.enter(1, sys.executable, program), stdout=output, stderr=output)
        client = subprocess.Popen(machine.enter(0, sys.executable, program, "--to", machine.address(1), "-b", least,
                                                "-e", most, "-f", factor, "--time", str(seconds), "--parts", str(parts),
                                                "-J", json_file),
                                  stdout=output, stderr=output)
        status = on_hosts.wait_for([server, client], TIMEOUT)
        machine.clear()
        output.seek(0)
        return (json.loads(pathlib.Path(json_file).read_text())["results"] if status == 0 else
                describe_failure(subprocess.CompletedProcess([], status, "", output.read()), "roofline_tcp"))


def measure_table(machine, arguments, table, collection, progress, json_file, found, until):
    hosts, each, rate, collective, rounds, small = table
    where = f"{collective}, {hosts} hosts x {each}, {rate or 'no limit'}"
    done_without = set()
    turn = [*variants_of(arguments), "tcp"]
    for number in range(rounds + small):
        if number > 0 and time.monotonic() > until:
            note = f"hosts: one round of some tables, since the first {BUDGET} s were over"
            collection.notes += [note] if note not in collection.notes else []
            return
        first = number % len(turn)
        for variant in turn[first:] + turn[:first]:
            progress(f"{where}, round {number + 1}, {variant}")
            # TCP's own figures are the same for all collectives.
            known = variant == "tcp" and (hosts, each, collective) != (*arguments.shapes[0], COLLECTIVES[0])
            if known or variant in done_without:
                continue
            begun = time.monotonic()
            if variant == "tcp":
                rows = measure_tcp(machine, rate, *row_of(arguments, (hosts, each), rate), json_file)
            else:
                command = command_of(arguments, variant, (hosts, each), collective, rate, json_file, number,
                                     number >= rounds)
                rows = run(machine, each, variant, command, json_file)
            if isinstance(rows, str):
                done_without.add(variant)
                collection.missing[f"hosts: {variant}, {where}"] = rows
                continue
            if time.monotonic() - begun > PATIENCE:
                done_without.add(variant)
            add(found, table, variant, rows, control_of(arguments))


def add(found, table, variant, rows, control):
    hosts, each, rate, collective, *_ = table
    for row in rows:
        timed = row if variant == "tcp" else row["out_of_place"]
        if row["size"] == 0 or timed is None:
            continue
        for known in found:
            if (known["hosts"], known["each"], known["rate"], known["collective"], known["variant"],
                    known["size"]) == (hosts, each, rate, collective, variant, row["size"]):
                known["times"].append(timed["time"])
                break
        else:
            found.append({"hosts": hosts, "each": each, "rate": rate, "collective": collective, "variant": variant,
                          "size": row["size"], "times": [timed["time"]], "algorithm": row.get("algorithm", ""),
                          "congestion": control})


def measure(arguments, collection, progress):
    found = []
    machine = None
    until = time.monotonic() + BUDGET
    try:
        with tempfile.TemporaryDirectory(prefix="tutti_compare_") as folder:
            for table in plan(arguments):
                hosts, each, rate, *_ = table
                if machine is None or len(machine.names) != hosts:
                    if machine is not None:
                        machine.close()
                    machine = on_hosts.Hosts(hosts, congestion=arguments.congestion)
                machine.rate(rate)
                measure_table(machine, arguments, table, collection, progress, os.path.join(folder, "out.json"), found,
                              until)
    except on_hosts.Unavailable as error:
        collection.missing["hosts"] = str(error)
    finally:
        if machine is not None:
            machine.close()
    if found:
        collection.parts["hosts"] = found


def medians_of(found, hosts, each, rate, collective):
    """{variant: {size: microseconds}}"""
    medians = {}
    for row in found:
        if (row["hosts"], row["each"], row["rate"], row["collective"]) == (hosts, each, rate, collective):
            medians.setdefault(row["variant"], {})[row["size"]] = statistics.median(row["times"])
    return medians


def peer_ratios(medians, low=0, high=1 << 62):
    """{size: the best baseline's time over Tutti's}"""
    return {size: min(medians[baseline][size] for baseline in BASELINES if size in medians.get(baseline, {})) / mine
            for size, mine in medians.get(TUTTI, {}).items()
            if low <= size <= high and any(size in medians.get(baseline, {}) for baseline in BASELINES)}


def lost_to_best(found, hosts, each, rate, collective, size):
    """In how many rounds Tutti was slower than the baseline that is the best by its median, and of how many."""
    times = {row["variant"]: row["times"] for row in found
             if (row["hosts"], row["each"], row["rate"], row["collective"], row["size"]) == (hosts, each, rate, collective, size)}
    best = min((name for name in BASELINES if name in times), key=lambda name: statistics.median(times[name]))
    pairs = list(zip(times[TUTTI], times[best]))
    return sum(mine > theirs for mine, theirs in pairs), len(pairs)


def by_chance(lost, rounds):
    """How likely it is to lose so many, or more, where both take the same."""
    return sum(math.comb(rounds, more) for more in range(lost, rounds + 1)) / 2 ** rounds


def tie(found, hosts, each, rate, collective, size, ratio, of_limit):
    """Words, where a time that is longer than the best baseline's says nothing; else empty."""
    if min(ratio, of_limit) >= AT_THE_LIMIT:
        return "at the limit"
    lost, rounds = lost_to_best(found, hosts, each, rate, collective, size)
    can_tell = by_chance(rounds, rounds) < 0.05
    return f"a tie: slower in {lost} of {rounds} rounds" if can_tell and by_chance(lost, rounds) >= 0.05 else ""


def shapes_of(found):
    return list(dict.fromkeys((row["hosts"], row["each"]) for row in found))


def tcp_times(found, rate):
    """{size: microseconds} of TCP alone."""
    return {row["size"]: statistics.median(row["times"]) for row in found
            if row["variant"] == "tcp" and row["rate"] == rate}


def link_speed(found, rate):
    """Bytes per microsecond each way that TCP reaches, or None."""
    times = tcp_times(found, rate)
    return max((size / micros for size, micros in times.items()), default=None)


def limit_of(found, hosts, each, rate, collective, size):
    """Microseconds that the bytes of the algorithm take on a host's link, or None."""
    speed = link_speed(found, rate)
    return None if speed is None else size * host_bytes(collective, hosts, each) / speed


def goal_over(text, by_collective, wanted, mean, tie_of=lambda collective, size, value: ""):
    """One line: each collective's mean or least value against `wanted`, and the sizes over which it was taken. Where
    tie_of(collective, size, value) has words the value may be less."""
    parts, met = [], True
    sizes = sorted({size for values in by_collective.values() for size in values})
    if sizes:
        text += f" ({', '.join(print_size(size) for size in sizes)})"
    for collective, values in by_collective.items():
        if not values:
            continue
        if mean:
            value = geometric_mean(values.values())
            parts.append(f"{collective} {value:.2f}")
            met = met and value >= wanted
            continue
        ties = {size: tie_of(collective, size, value) for size, value in values.items() if value < wanted}
        behind = [size for size, words in ties.items() if not words]
        worst = min(behind or values, key=values.get)
        parts.append(f"{collective} {values[worst]:.2f} at {print_size(worst)}" +
                     (f" ({ties[worst]})" if ties.get(worst) else ""))
        met = met and not behind
    return {"goal": text, "measured": ", ".join(parts), "met": met} if parts else None


def goals(found):
    rows = []
    for hosts, each in shapes_of(found):
        shape = f"{hosts} hosts x {each}"
        full = {name: medians_of(found, hosts, each, None, name) for name in COLLECTIVES}
        slow = {name: medians_of(found, hosts, each, RATE, name) for name in COLLECTIVES}
        of_limit = {name: {size: limit_of(found, hosts, each, RATE, name, size) / time
                           for size, time in medians.get(TUTTI, {}).items() if size >= MIB and link_speed(found, RATE)}
                    for name, medians in slow.items()}

        def slow_tie(collective, size, ratio):
            return tie(found, hosts, each, RATE, collective, size, ratio, of_limit[collective].get(size, 0))

        def small_tie(collective, size, ratio):
            return tie(found, hosts, each, None, collective, size, ratio, 0)

        rows += [
            goal_over(f"{shape}, {RATE}, from 1 MiB: at least 0.95 of the link's limit", of_limit, 0.95, mean=False),
            goal_over(f"{shape}, {RATE}, from 1 MiB: never behind any baseline",
                      {name: peer_ratios(medians, MIB) for name, medians in slow.items()}, 1.0, False, slow_tie),
            goal_over(f"{shape}, from 64 KiB: mean at least 1.3",
                      {name: peer_ratios(medians, 64 * KIB) for name, medians in full.items()}, 1.3, mean=True),
            goal_over(f"{shape}, to 4 KiB: no slower than the best baseline",
                      {name: peer_ratios(medians, 0, 4 * KIB) for name, medians in full.items()}, 1.0, False, small_tie),
        ]
    return [row for row in rows if row is not None]


def one_table(found, hosts, each, rate, collective):
    medians = medians_of(found, hosts, each, rate, collective)
    names = [name for name in [TUTTI, *BASELINES] if name in medians]
    if not names:
        return []
    algorithms = {row["size"]: row["algorithm"] for row in found if row["variant"] == TUTTI and
                  (row["hosts"], row["each"], row["rate"], row["collective"]) == (hosts, each, rate, collective)}
    ratios = peer_ratios(medians)
    lines = [f"### {collective}, {hosts} hosts x {each}, {rate or 'no limit'} (microseconds)", "",
             "| size | " + " | ".join(names) + " | TCP's limit | best baseline / tutti | algorithm |",
             "|" + "---:|" * (len(names) + 3) + "---|"]
    for size in sorted({size for name in names for size in medians[name]}):
        cells = [format(medians[name][size], ".1f") if size in medians[name] else "-" for name in names]
        limit = limit_of(found, hosts, each, rate, collective, size)
        cells += [format(limit, ".1f") if limit else "-", f"{ratios[size]:.2f}" if size in ratios else "-",
                  algorithms.get(size, "-")]
        lines.append(f"| {print_size(size)} | " + " | ".join(cells) + " |")
    return lines + [""]


def tcp_table(found):
    lines = ["### TCP alone: two hosts, so many bytes each way at the same time (microseconds)", "",
             "| size | no limit | " + RATE + " |", "|---:|---:|---:|"]
    full, slow = (tcp_times(found, rate) for rate in (None, RATE))
    for size in sorted({*full, *slow}):
        cells = [format(times[size], ".1f") if size in times else "-" for times in (full, slow)]
        lines.append(f"| {print_size(size)} | " + " | ".join(cells) + " |")
    return lines + [""] if full or slow else []


def table(found):
    lines = ["## Hosts: network namespaces on this machine", "",
             f"Tutti over {VARIABLES[TUTTI]['TUTTI_NETWORK']}; Open MPI, MPICH and Gloo over TCP. TCP's limit: the bytes "
             "that a host must send by the textbook, at the best rate of TCP alone (the table below). Medians of "
             "interleaved rounds. A time that is longer than the best baseline's is a tie where it is so in no more rounds "
             f"than chance has it (sign test, 5 %), or within {100 * (1 - AT_THE_LIMIT):.0f} % of TCP's limit. TCP's "
             f"congestion control is {', '.join(sorted({row['congestion'] for row in found}))}; Tutti's, where that is "
             "bbr: reno.", ""]
    lines += tcp_table(found)
    for hosts, each in shapes_of(found):
        for rate in (None, RATE):
            for collective in COLLECTIVES:
                lines += one_table(found, hosts, each, rate, collective)
    return lines


def draw(found, pyplot, folder):
    """Time over size: a row of panels for each shape and rate."""
    lines = [(hosts, each, rate) for hosts, each in shapes_of(found) for rate in (None, RATE)]
    figure, axes = pyplot.subplots(len(lines), len(COLLECTIVES), figsize=(3.4 * len(COLLECTIVES), 3.0 * len(lines)),
                                   squeeze=False)
    for (hosts, each, rate), line in zip(lines, axes):
        for collective, axis in zip(COLLECTIVES, line):
            for name, by_size in medians_of(found, hosts, each, rate, collective).items():
                sizes = sorted(by_size)
                axis.plot(sizes, [by_size[size] for size in sizes], "--" if name == "tcp" else "-", color=COLOURS[name],
                          label="TCP alone" if name == "tcp" else name, marker="o", markersize=2.5, linewidth=1.3)
            compare_plots.over_sizes(axis, f"{collective}, {hosts} x {each}, {rate or 'no limit'}", "time (us)")
    axes.flat[0].legend(fontsize=7)
    figure.tight_layout()
    path = folder / "hosts.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
