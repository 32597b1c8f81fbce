"""What perf/gpu.py measured, as tables, goals and pictures."""
import pathlib

MIB = 1 << 20
KIB = 1 << 10
DRAWN = (1, 2, 4, 8)  # numbers of ranks in the pictures


def print_size(size):
    for unit, name in [(1 << 30, "GiB"), (MIB, "MiB"), (KIB, "KiB")]:
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def moved_bytes(collective, size, ranks):
    """Bytes read and written on one GPU that all ranks share, at least; `size` is the row's (nccl-tests' meaning).

    all_reduce, two-shot: each rank reads its share of all inputs and writes it to all outputs. reduce_scatter reads all
    inputs (size each) and writes a share each; all_gather reads a share each and writes all outputs.
    """
    if collective == "all_reduce":
        return 2 * ranks * size
    return ranks * size + size


def limit_us(limits, ranks, collective, size):
    """Time of a copy on the device that reads and writes as many bytes; None when none of about that size was measured."""
    rows = limits.get(ranks) or next(iter(limits.values()), {})
    wanted = moved_bytes(collective, size, ranks) / 2  # a copy reads and writes
    near = min(rows, key=lambda at: abs(at - wanted), default=None)
    if near is None:
        return None
    # What is larger than the largest copy goes at its rate, when that one's start has ceased to count.
    if not 0.5 <= near / wanted <= 2 and not (wanted > near >= 256 * MIB):
        return None
    return rows[near]["copy_us"] * wanted / near


def share_of_limit(times, limits, key, size):
    """Of the rate at which the GPU copies: 1 is as fast. None where it is not known."""
    collective, _, ranks, _ = key
    limit = limit_us(limits, ranks, collective, size)
    return limit / times[key][size]["time"] if limit and size in times[key] else None


def goal(text, edges, values, met):
    """`values`: by size, None where there is nothing to compare with. `edges`: sizes that the goal speaks of."""
    known = {size: value for size, value in values.items() if value is not None}
    if not known:
        return f"- not measured: {text}"
    rest = sorted({*edges, *values} - set(known))
    verdict = "NOT met" if not all(met(value) for value in known.values()) else "met, as far as judged" if rest else "met"
    return (f"- {verdict}: {text} ({min(known.values()):.2f} to {max(known.values()):.2f})"
            + (f"; not judged: {', '.join(print_size(size) for size in rest)}" if rest else ""))


def goals(times, limits):
    lines = []
    for ranks in (2, 4):
        for collective in ("all_reduce", "all_gather", "reduce_scatter"):
            for how, most in (("graph", 8), ("launch", 15)):
                rows = times.get((collective, "threads", ranks, how), {})
                lines.append(goal(f"{collective}, {ranks} threads, {how}, up to 64 KiB: at most {most} us", [64 * KIB],
                                  {size: row["time"] for size, row in rows.items() if 0 < size <= 64 * KIB}, lambda v, m=most: v <= m))
            key = (collective, "threads", ranks, "launch")
            large = [size for size in times.get(key, {}) if size >= 16 * MIB]
            lines.append(goal(f"{collective}, {ranks} threads, from 16 MiB: 0.85 or more of the copy limit", [16 * MIB, 1024 * MIB],
                              {size: share_of_limit(times, limits, key, size) for size in large}, lambda v: v >= 0.85))
    return lines


def column(key):
    _, kind, ranks, how = key
    return f"{ranks} {kind}, {how}"


def table(collective, kind, times, limits):
    keys = [key for key in times if key[:2] == (collective, kind)]
    loops = sorted(ranks for ranks in limits if any(key[2] == ranks for key in keys))
    sizes = sorted({size for key in keys for size in times[key]})
    head = ["size", *[column(key) for key in keys], *[f"host loop, {ranks} ranks" for ranks in loops]]
    lines = [f"### {collective}, {kind}: microseconds (share of the copy limit)", "", "| " + " | ".join(head) + " |",
             "|" + "---|" * len(head)]
    for size in sizes:
        cells = [print_size(size)]
        for key in keys:
            row = times[key].get(size)
            share = share_of_limit(times, limits, key, size) if row and size >= MIB else None
            cells.append("-" if row is None else f"{row['time']:.2f}" + (f" ({share:.2f})" if share else ""))
        for ranks in loops:
            loop = limits[ranks].get(size, {}).get("loop_us", {}).get(collective)
            cells.append("-" if loop is None else f"{loop:.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def limit_table(limits):
    rows = next(iter(limits.values()), {})
    lines = ["### The GPU's own copy (device to device; bytes read and written)", "", "| size | us | GB/s |", "|---|---|---|"]
    lines += [f"| {print_size(size)} | {row['copy_us']:.2f} | {row['gb_per_s']:.0f} |" for size, row in sorted(rows.items())]
    return lines


def write(machine, times, limits, missing):
    gpus = machine["gpus"]
    lines = [f"# Collectives on GPU memory, {machine['date']}, commit {machine['commit']}", "",
             f"{machine['processor']}, {machine['cores']} cores, {machine['system']}; {len(gpus)} GPU(s): "
             + ", ".join(sorted({gpu["name"] for gpu in gpus})), "",
             "Ranks get the GPUs in turn; those beyond their number share one. f32, sum, out of place. A time is that of one call "
             "by the host's clock, many calls in the stream and one wait."
             + (f" The columns nccl: {machine['nccl']}." if machine.get("nccl") else ""), "", "## Goals", "", *goals(times, limits), ""]
    for collective, kind in dict.fromkeys(key[:2] for key in times):
        lines += [*table(collective, kind, times, limits), ""]
    if limits:
        lines += [*limit_table(limits), ""]
    if missing:
        lines += ["## Not measured", "", *[f"- {name}: {why}" for name, why in missing.items()], ""]
    return "\n".join(lines)


def draw(times, limits, out):
    """Writes a picture for each collective, of some numbers of ranks; says a line for each."""
    times = {key: rows for key, rows in times.items() if key[2] in DRAWN}
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return [f"no plots: matplotlib is not installed; where it is: perf/gpu.py draw --out {out}"]
    lines = []
    for collective in dict.fromkeys(key[0] for key in times):
        figure, axis = pyplot.subplots(figsize=(8, 5))
        for key in [key for key in times if key[0] == collective]:
            points = sorted((size, row["time"]) for size, row in times[key].items() if size > 0)
            axis.plot([size for size, _ in points], [value for _, value in points], marker="o", markersize=3, label=column(key))
        for ranks in sorted({key[2] for key in times if key[0] == collective}):
            points = [(size, limit_us(limits, ranks, collective, size)) for size in
                      sorted({size for key in times if key[0] == collective and key[2] == ranks for size in times[key] if size > 0})]
            points = [(size, value) for size, value in points if value]
            if points:
                axis.plot([size for size, _ in points], [value for _, value in points], "k--", linewidth=0.8,
                          label=f"copy of as many bytes, {ranks} ranks")
        axis.set(xscale="log", yscale="log", xlabel="size (bytes)", ylabel="time (us)", title=f"{collective} on GPU memory")
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=6)
        path = pathlib.Path(out) / f"{collective}.png"
        figure.savefig(path, dpi=120, bbox_inches="tight")
        pyplot.close(figure)
        lines.append(f"plot: {path}")
    return lines
