"""Memory per rank by strategy and number of ranks, compared with the formulas: build/bin/memory_bench, its table and plot."""
from compare_measure import measure_training

# Bytes of a parameter: f32 parameters, gradients and Adam's two moments (Rajbhandari et al., "ZeRO", SC 2020).
FORMULAS = {"ddp": "16", "zero1": "8 + 8/n", "zero2": "4 + 12/n", "zero3": "16/n"}
COLOURS = {"ddp": "#7d8b8c", "zero1": "#17a589", "zero2": "#e67e22", "zero3": "#c0392b"}


def steps(arguments):
    return 1


def measure(arguments, collection, progress):
    progress("memory per rank")
    measure_training(arguments, collection, "training_memory", "memory_bench")


def beyond(row):
    """Bytes of all ranks that the formula does not have."""
    return row["measured_sum"] - row["ranks"] * row["formula"]


def goals(report):
    """Parameters and gradients may be padded, the optimiser's state is not."""
    rows = report["results"]
    wrong = [row for row in rows if not 0 <= beyond(row) <= 2 * row["padding_sum"]]
    worst = max(rows, key=lambda row: row["measured"] / row["formula"])
    return [{"goal": "memory per rank of ddp, zero1, zero2 and zero3: the formula to the byte, padding aside",
             "measured": f"{len(rows) - len(wrong)} of {len(rows)}; at most {worst['measured'] / worst['formula']:.4f} times "
                         f"the formula ({worst['strategy']}, {worst['ranks']} ranks)", "met": not wrong}]


def table(report):
    lines = [f"## Memory per rank: {report['parameters']} parameters of f32, AdamW", "",
             "Bytes after a step, of the rank that needs the most. Beyond: bytes of all ranks together that the formula does not have; "
             "padding: of all ranks' parameters, and as much again may be in gradients. Peak gathered: whole parameters "
             "in addition to the shards, during a pass.", "",
             "| strategy | bytes of a parameter | n | parameters | gradients | optimiser | measured | formula | "
             "measured / formula | beyond | padding | peak gathered |",
             "|---|---|" + "---:|" * 10]
    lines += [f"| {row['strategy']} | {FORMULAS[row['strategy']]} | {row['ranks']} | {row['parameters']} | "
              f"{row['gradients']} | {row['optimiser']} | {row['measured']} | {row['formula']:.0f} | "
              f"{row['measured'] / row['formula']:.4f} | {beyond(row):.0f} | {row['padding_sum']} | "
              f"{row['peak_gathered']} |" for row in report["results"]]
    return lines + [""]


def draw(report, pyplot, folder):
    """Megabytes over ranks: points are measured, lines are the formulas."""
    figure, axis = pyplot.subplots(figsize=(6.4, 4.4))
    for strategy, colour in COLOURS.items():
        rows = [row for row in report["results"] if row["strategy"] == strategy]
        ranks = [row["ranks"] for row in rows]
        axis.plot(ranks, [row["formula"] / 1e6 for row in rows], "-", color=colour, linewidth=1.3,
                  label=f"{strategy}: {FORMULAS[strategy]} bytes")
        axis.plot(ranks, [row["measured"] / 1e6 for row in rows], "o", color=colour, markersize=5)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted({row["ranks"] for row in report["results"]}))
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("ranks")
    axis.set_ylabel("MB per rank")
    axis.set_title(f"{report['parameters']} parameters: lines are formulas, points are measured", fontsize=10)
    axis.grid(True, alpha=0.3)
    axis.legend(fontsize=8)
    figure.tight_layout()
    path = folder / "memory.png"
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path
