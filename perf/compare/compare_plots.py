"""The results as pictures: bus bandwidth over size and time over size, one panel per collective."""
import math

import compare_goals

COLOURS = {"tutti registered": "#c0392b", "tutti plain": "#e67e22", "tutti deterministic": "#8e44ad",
           "openmpi": "#2471a3", "mpich": "#17a589", "gloo": "#7d8b8c", "limit": "black"}


def series(medians, ranks, collective, variant):
    points = sorted((size, time) for (at_ranks, at, name, size), time in medians.items()
                    if (at_ranks, at, name) == (ranks, collective, variant))
    return [size for size, _ in points], [time for _, time in points]


def over_sizes(axis, title, what):
    """The dress of a panel that shows `what` over the size."""
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_title(title, fontsize=9)
    axis.set_xlabel("size (bytes)", fontsize=8)
    axis.set_ylabel(what, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(True, which="major", alpha=0.3)


def draw_panel(axis, arguments, collection, medians, ranks, collective, bandwidth):
    work = compare_goals.LIMIT_OF.get(collective, "copy")
    both = ["tutti registered", "tutti deterministic"]
    for variant in [*(both if collective == "deterministic" else arguments.variants), "limit"]:
        sizes, times = series(medians, ranks, work if variant == "limit" else collective, variant)
        if bandwidth:
            known = [(size, collection.factors[(ranks, collective, size)] / time) for size, time in zip(sizes, times)
                     if (ranks, collective, size) in collection.factors]
            sizes, times = [size for size, _ in known], [value for _, value in known]
        if sizes:
            label = "machine's limit" if variant == "limit" else variant
            style = "--" if variant == "limit" else "-"
            axis.plot(sizes, times, style, color=COLOURS[variant], label=label, marker="o", markersize=2.5, linewidth=1.3)
    over_sizes(axis, f"{collective}, {ranks} ranks", "bus bandwidth (GB/s)" if bandwidth else "time (us)")


def draw(arguments, collection, medians, drawings=()):
    """Writes the PNG files; `drawings`: pairs (draw(what, pyplot, folder), what). Yields a line of text for each, or one that says why there is none."""
    try:
        import matplotlib
    except ImportError:
        yield "no plots: this Python has no matplotlib (python3-matplotlib, or .venv/bin/python perf/compare/compare.py)"
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    for draw_part, what in drawings:
        path = draw_part(what, pyplot, arguments.out)
        if path:
            yield f"plot: {path}"
    if not collection.times:
        return
    panels = len(arguments.tables)
    columns = min(3, panels)
    rows = math.ceil(panels / columns)
    for ranks in arguments.ranks:
        for bandwidth in (True, False):
            figure, axes = pyplot.subplots(rows, columns, figsize=(max(6.4, 4.2 * columns), max(4.4, 3.2 * rows)),
                                           squeeze=False)
            for panel, axis in enumerate(axes.flat):
                if panel < panels:
                    draw_panel(axis, arguments, collection, medians, ranks, arguments.tables[panel], bandwidth)
                else:
                    axis.set_visible(False)
            axes.flat[0].legend(fontsize=7)
            figure.tight_layout()
            name = f"{'bus_bandwidth' if bandwidth else 'time'}_{ranks}_ranks.png"
            figure.savefig(arguments.out / name, dpi=130)
            pyplot.close(figure)
            yield f"plot: {arguments.out / name}"
