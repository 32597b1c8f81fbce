"""How much communication hides behind backward over a link slowed down: build/bin/overlap_bench, its table and plot."""
from compare_measure import measure_training

GOAL = 1.15
COLOURS = {"ddp": "#c0392b", "fsdp": "#2471a3"}


def steps(arguments):
    return 1


def measure(arguments, collection, progress):
    progress("overlap, link slowed down")
    rounds = ["--rounds", str(arguments.rounds)] if arguments.rounds else []
    measure_training(arguments, collection, "training_overlap", "overlap_bench", *rounds)


def best_of(report, strategy):
    """The row of the size with the shortest step, or None."""
    rows = [row for row in report["results"] if row["strategy"] == strategy]
    return min(rows, key=lambda row: row["ratio"], default=None)


def goals(report):
    found = []
    for strategy, what in (("ddp", "buckets"), ("fsdp", "units")):
        row = best_of(report, strategy)
        if row:
            found.append({"goal": f"overlap of {strategy}, communication as long as backward: a step at most {GOAL} times "
                                  "the longer of computation and communication",
                          "measured": f"{row['ratio']:.2f} with {what} of {row['mib']} MiB", "met": row["ratio"] <= GOAL})
    return found


def table(report):
    lines = ["## Overlap: a link slowed down until communication takes as long as backward", "",
             f"{report['ranks']} ranks, {report['layers']} layers of {report['width']}, "
             f"{report['parameter_bytes'] / 1e6:.1f} MB of parameters, {report['rows']} rows of {report['context']}; "
             f"milliseconds, medians of {report['rounds']} interleaved rounds of {report['steps']} steps. Computation alone "
             f"takes {report['compute_ms']:.1f}: forward {report['forward_ms']:.1f}, backward {report['backward_ms']:.1f}.",
             "", "| strategy | MiB of a bucket or unit | pieces | link, MB/s | computation alone | communication alone | step, "
             "overlap | step, without | step / the longer one |", "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    lines += [f"| {row['strategy']} | {row['mib']} | {row['pieces']} | {row['bytes_per_second'] / 1e6:.0f} | "
              f"{row['compute_ms']:.1f} | {row['communication_ms']:.1f} | {row['step_ms']:.1f} | {row['blocking_ms']:.1f} | "
              f"{row['ratio']:.2f} |"
              for row in report["results"]]
    return lines + [""]


def draw(report, pyplot, folder):
    """Step times over sizes, with overlap, without it, and for the computation alone."""
    figure, axis = pyplot.subplots(figsize=(8.4, 4.4))
    for strategy, colour in COLOURS.items():
        rows = [row for row in report["results"] if row["strategy"] == strategy]
        for key, style, what in (("step_ms", "-", "overlap"), ("blocking_ms", "--", "without"),
                                 ("communication_ms", ":", "communication alone")):
            if rows:
                axis.plot([row["mib"] for row in rows], [row[key] for row in rows], style, color=colour, marker="o",
                          markersize=3, label=f"{strategy}, {what}")
    axis.axhline(report["compute_ms"], color="black", linewidth=1, label="computation alone")
    axis.axhline(GOAL * report["compute_ms"], color="grey", linewidth=1, linestyle="-.", label=f"{GOAL} times that")
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("MiB of a bucket (ddp) or unit (fsdp)")
    axis.set_ylabel("ms per step")
    axis.set_title(f"Overlap over a slow link, {report['ranks']} ranks", fontsize=10)
    axis.grid(True, alpha=0.3)
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.tight_layout()
    path = folder / "overlap.png"
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path
