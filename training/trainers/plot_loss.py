"""Draws the loss curve of a trainer's CSV: plot_loss.py METRICS.csv CURVE.png"""

import csv
import sys

import matplotlib

matplotlib.use("Agg")  # no display needed
import matplotlib.pyplot as plt


def main(metrics, curve):
    with open(metrics, newline="") as file:
        rows = list(csv.DictReader(file))
    steps = [int(row["step"]) for row in rows]
    losses = [float(row["loss"]) for row in rows]
    smooth, mean = [], losses[0]
    for loss in losses:
        mean = 0.9 * mean + 0.1 * loss
        smooth.append(mean)

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=120)
    axes.plot(steps, losses, color="#9ab8d8", linewidth=0.8, label="each step")
    axes.plot(steps, smooth, color="#1f4e8c", linewidth=2, label="smoothed (0.9)")
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats")
    axes.set_title("Training loss, mean over all ranks")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(curve)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
