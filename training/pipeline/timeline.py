"""Draws a pipeline run beside its simulation: timeline.py TIMELINE.json PICTURE.png"""

import json
import sys

import matplotlib

matplotlib.use("Agg")  # no display needed
import matplotlib.pyplot as plt
from matplotlib.patches import Patch

COLOURS = {"F": "#5b8fd6", "B": "#e2955a", "I": "#e2955a", "W": "#7fb77e"}
NAMES = {"F": "forward", "B": "backward", "I": "backward, input", "W": "backward, weights"}


def idle(ranks):
    actions = [action for rank in ranks for action in rank]
    span = max(a[4] for a in actions) - min(a[3] for a in actions)
    busy = sum(a[4] - a[3] for a in actions)
    return 1 - busy / (span * len(ranks))


def draw(axes, title, ranks, stages):
    for rank, actions in enumerate(ranks):
        for kind, stage, micro_batch, start, end in actions:
            turn = stage // len(ranks)  # later stages of the same rank are drawn paler
            alpha = 1 - 0.6 * turn / max(1, stages // len(ranks))
            axes.barh(rank, 1e3 * (end - start), left=1e3 * start, height=0.8, color=COLOURS[kind], alpha=alpha,
                      edgecolor="white", linewidth=0.5)
            axes.text(1e3 * (start + end) / 2, rank, str(micro_batch), ha="center", va="center", fontsize=6,
                      clip_on=True)
    axes.set_title(f"{title}: {100 * idle(ranks):.1f} % idle", fontsize=10, loc="left")
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in range(len(ranks))])
    axes.invert_yaxis()
    axes.set_ylabel("")


def main(source, picture):
    with open(source) as file:
        data = json.load(file)
    figure, both = plt.subplots(2, 1, figsize=(11, 2.2 + 0.7 * data["ranks"]), dpi=120, sharex=True)
    draw(both[0], "measured", data["measured"], data["stages"])
    draw(both[1], "simulated", data["simulated"], data["stages"])
    both[1].set_xlabel("milliseconds; the numbers are micro-batches")
    kinds = sorted({action[0] for rank in data["simulated"] for action in rank}, key="FBIW".index)
    figure.legend(handles=[Patch(color=COLOURS[kind], label=NAMES[kind]) for kind in kinds], loc="upper right",
                  ncols=len(kinds), fontsize=8, frameon=False)
    figure.suptitle(f"{data['schedule']}: {data['stages']} stages on {data['ranks']} ranks, "
                    f"{data['micro_batches']} micro-batches", x=0.01, ha="left", fontsize=11)
    figure.tight_layout()
    figure.savefig(picture)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
