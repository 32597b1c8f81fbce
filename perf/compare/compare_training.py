"""Step times of the same training, by build/bin/train_gpt over Tutti and its baselines and by PyTorch's own DDP and FSDP2.

PyTorch's ranks run torch_reference.py, which trains the same model from the same parameters on the same rows. All get
the same number of torch threads and the same settings of the allocator (train_gpt keeps freed memory, and so shall they).
"""
import csv
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from compare_measure import describe_failure

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 30
WARM_UP_STEPS = 5  # first calls, first touch of memory
ROUNDS = {2: 5, 4: 2}  # with 4 ranks on 2 cores the figures are information only
TIMEOUT = 300
LOSSES_MAY_DIFFER = 1e-3  # the same arithmetic in another order, over STEPS steps

# The columns: name, and the program with its options.
TRAIN_GPT, REFERENCE = "train_gpt", "torch_reference.py"
VARIANTS = {
    "Tutti DDP": (TRAIN_GPT, ["--parallel", "ddp", "--backend", "tutti"]),
    "Open MPI DDP": (TRAIN_GPT, ["--parallel", "ddp", "--backend", "openmpi"]),
    "Gloo DDP": (TRAIN_GPT, ["--parallel", "ddp", "--backend", "gloo"]),
    "PyTorch DDP": (REFERENCE, ["--parallel", "ddp"]),
    "Tutti FSDP": (TRAIN_GPT, ["--parallel", "fsdp", "--backend", "tutti"]),
    "PyTorch FSDP2": (REFERENCE, ["--parallel", "fsdp2"]),
}
# Why these sizes: perf/findings.md, "Training".
SIZES = {
    "communication-bound": ["--batch", "1", "--context", "8"],
    "communication-bound, wide": ["--width", "512", "--heads", "8", "--batch", "1", "--context", "8"],
    "compute-bound": [],
}
# Ours, theirs, and how many times faster a step shall be at the communication-bound sizes, and at the others.
GOALS = [("Tutti DDP", "PyTorch DDP", 1.3, 1.0), ("Tutti FSDP", "PyTorch FSDP2", 1.5, 1.0)]


def rank_counts(arguments):
    return [ranks for ranks in arguments.ranks if ranks in ROUNDS]


def rounds_of(arguments, ranks):
    return arguments.rounds or ROUNDS[ranks]


def steps(arguments):
    return len(SIZES) * len(VARIANTS) * sum(rounds_of(arguments, ranks) for ranks in rank_counts(arguments))


def python_with_torch():
    """An interpreter that can import torch, or None."""
    if importlib.util.find_spec("torch"):
        return sys.executable
    own = HERE.parent.parent / ".venv" / "bin" / "python"
    return str(own) if own.exists() else None


def read_steps(path):
    """Medians after warm-up of a train_gpt run: {"step_ms", "communication_share", "loss" (the last), "sent_bytes"}."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    counted = rows[WARM_UP_STEPS:]
    if not counted:
        raise ValueError("too few steps")
    return {"step_ms": statistics.median(float(row["step_ms"]) for row in counted),
            "communication_share": statistics.median(float(row["communication_share"]) for row in counted),
            "loss": float(rows[-1]["loss"]), "sent_bytes": float(rows[-1]["bytes_sent"])}


def read_reference(path):
    """The same of a run of torch_reference.py."""
    lines = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    summary = lines[-1]["summary"]
    loss = [line["loss"] for line in lines if "step" in line][-1]
    return {"loss": loss, **{key: summary[key] for key in ("step_ms", "communication_share", "sent_bytes")}}


def run_one(arguments, variant, ranks, options, folder):
    """What read_steps() or read_reference() says, or a sentence that says why there is nothing."""
    kind, own_options = VARIANTS[variant]
    path = os.path.join(folder, "steps")
    common = ["--ranks", str(ranks), "--steps", str(STEPS), *own_options, *options]
    environment = dict(os.environ)
    if kind == TRAIN_GPT:
        command = [str(arguments.bin / TRAIN_GPT), *common, "--csv", path]
    else:
        python = python_with_torch()
        if python is None:
            return "no Python with torch (./dev build makes one in .venv)"
        command = [python, str(HERE / REFERENCE), *common, "--local-steps", str(STEPS), "--json", path]
        environment.update({"MALLOC_TRIM_THRESHOLD_": "2147483647", "MALLOC_MMAP_THRESHOLD_": "2147483647"})
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment)
        if done.returncode != 0:
            return describe_failure(done, kind.removesuffix(".py"))
        return read_steps(path) if kind == TRAIN_GPT else read_reference(path)
    except subprocess.TimeoutExpired:
        return f"{kind} did not end within {TIMEOUT} s"
    except (OSError, KeyError, ValueError) as error:
        return f"{kind}: {error}"


def measure(arguments, collection, progress):
    if not (arguments.bin / TRAIN_GPT).exists():
        collection.missing["training_steps"] = "train_gpt was not built (it needs LibTorch)"
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="tutti_compare_") as folder:
        for ranks in rank_counts(arguments):
            for size, options in SIZES.items():
                rounds = {variant: [] for variant in VARIANTS}
                for number in range(rounds_of(arguments, ranks)):
                    for variant in VARIANTS:
                        progress(f"training, {size}, {ranks} ranks, round {number + 1}, {variant}")
                        if rounds[variant] is None:
                            continue
                        result = run_one(arguments, variant, ranks, options, folder)
                        if isinstance(result, str):
                            collection.missing[f"training, {size}, {ranks} ranks, {variant}"] = result
                            rounds[variant] = None
                        else:
                            rounds[variant].append(result)
                rows += [summary(size, options, variant, ranks, results)
                         for variant, results in rounds.items() if results]
    if rows:
        collection.parts["training_steps"] = rows


def summary(size, options, variant, ranks, results):
    def median(key):
        values = [result[key] for result in results if result.get(key) is not None]
        return statistics.median(values) if values else None
    return {"size": size, "options": " ".join(options), "variant": variant, "ranks": ranks,
            "step_ms": median("step_ms"), "communication_share": median("communication_share"),
            "loss": results[-1]["loss"], "sent_bytes": results[-1]["sent_bytes"], "rounds": [result["step_ms"] for result in results]}


def ratio(rows, size, ranks, ours, theirs):
    """Their step over ours, the median over rounds (the two of a round ran close to each other), or None."""
    times = {row["variant"]: row["rounds"] for row in rows if (row["size"], row["ranks"]) == (size, ranks)}
    if ours not in times or theirs not in times:
        return None
    return statistics.median(b / a for a, b in zip(times[ours], times[theirs]))


def goals(rows):
    found = []
    for ours, theirs, at_communication, otherwise in GOALS:
        for size in SIZES:
            value = ratio(rows, size, 2, ours, theirs)
            if value is None:
                continue
            least = at_communication if size.startswith("communication") else otherwise
            found.append({"goal": f"a step of {ours}, 2 ranks, {size}: at least {least} times as fast as {theirs} over Gloo",
                          "measured": f"{value:.2f}", "met": value >= least})
    return found


def table(rows):
    """One line for each size and variant."""
    lines = ["## Training: a small GPT", "",
             "Median step after warm-up, median over interleaved rounds. Communication: for train_gpt the share of a step "
             "that waits for it and nothing else, not what backward hid; for PyTorch what a step takes beyond one without "
             "communication (a lower bound for FSDP2: that one updates the whole model). Sent: bytes of a rank in a "
             "step, counted by Tutti, for PyTorch by formula.", ""]
    for ranks in sorted({row["ranks"] for row in rows}):
        lines += [f"### Steps, {ranks} ranks", "",
                  "| model | variant | ms per step | least to most | communication | sent, MB | step / Tutti's |",
                  "|---|---|---:|---:|---:|---:|---:|"]
        here = [row for row in rows if row["ranks"] == ranks]
        for row in here:
            ours = "Tutti FSDP" if "FSDP" in row["variant"] else "Tutti DDP"
            value = ratio(rows, row["size"], ranks, ours, row["variant"])
            share = row["communication_share"]
            name = row["size"] + (f" (`{row['options']}`)" if row["options"] else "")
            lines.append(
                f"| {name} | {row['variant']} | {row['step_ms']:.2f} | {min(row['rounds']):.1f} to "
                f"{max(row['rounds']):.1f} | {'-' if share is None else f'{100 * share:.1f} %'} | "
                f"{format(row['sent_bytes'] / 1e6, '.2f') if row['sent_bytes'] else '-'} | {'-' if value is None else f'{value:.2f}'} |")
        lines += [""] + [losses(size, [row for row in here if row["size"] == size]) for size in SIZES
                         if any(row["size"] == size for row in here)] + [""]
    return lines


def losses(size, rows):
    """Whether all of them trained the same model."""
    values = [row["loss"] for row in rows]
    same = max(values) - min(values) <= LOSSES_MAY_DIFFER
    return (f"- {size}: after {STEPS} steps the losses are {min(values):.6f} to {max(values):.6f}"
            f"{'' if same else ': **they differ, so this compares nothing**'}.")


def draw(rows, pyplot, folder):
    """Milliseconds per step: a panel for each size, a bar for each variant, 2 ranks."""
    colours = {"Tutti": "#c0392b", "Open MPI": "#2471a3", "Gloo": "#7d8b8c", "PyTorch": "#e67e22"}
    here = [row for row in rows if row["ranks"] == 2]
    sizes = [size for size in SIZES if any(row["size"] == size for row in here)]
    if not sizes:
        return None
    figure, axes = pyplot.subplots(1, len(sizes), figsize=(4.4 * len(sizes), 3.6), squeeze=False)
    for axis, size in zip(axes.flat, sizes):
        bars = [row for row in here if row["size"] == size][::-1]
        axis.barh([row["variant"] for row in bars], [row["step_ms"] for row in bars],
                  color=[colours[row["variant"].rsplit(" ", 1)[0]] for row in bars])
        axis.set_title(size, fontsize=10)
        axis.set_xlabel("ms per step", fontsize=8)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    path = folder / "training_steps.png"
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path
