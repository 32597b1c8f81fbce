"""Step times of build/bin/train_gpt on 2 ranks: the same training over Tutti and over its peers, in turn."""
import csv
import os
import statistics
import subprocess
import tempfile

from compare_measure import describe_failure

BACKENDS = ["tutti", "openmpi", "gloo"]
RANKS = 2
STEPS = 40
WARM_UP_STEPS = 5  # first calls, first touch of memory
ROUNDS = 3
SIZES = {
    "the default model": [],
    "a wide model and one short row: the most communication for the computation":
        ["--width", "512", "--heads", "8", "--batch", "1", "--context", "8"],
}


def steps():
    return len(SIZES) * ROUNDS * len(BACKENDS)


def read_steps(path):
    """(milliseconds of the median step, median share of a step spent waiting for communication) after warm-up."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))[WARM_UP_STEPS:]
    if not rows:
        raise ValueError("too few steps")
    return (statistics.median(float(row["step_ms"]) for row in rows),
            statistics.median(float(row["communication_share"]) for row in rows))


def run_one(program, backend, options, folder):
    """read_steps()'s pair, or a sentence that says why there is none."""
    path = os.path.join(folder, "steps.csv")
    command = [str(program), "--ranks", str(RANKS), "--backend", backend, "--steps", str(STEPS), "--csv", path, *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            return describe_failure(done, "train_gpt")
        return read_steps(path)
    except subprocess.TimeoutExpired:
        return "train_gpt did not end within 300 s"
    except (OSError, KeyError, ValueError) as error:
        return f"train_gpt: {error}"


def measure(arguments, collection, progress):
    program = arguments.bin / "train_gpt"
    if not program.exists():
        collection.missing["training"] = "train_gpt was not built (it needs LibTorch)"
        return
    with tempfile.TemporaryDirectory(prefix="tutti_compare_") as folder:
        for size, options in SIZES.items():
            rounds = {backend: [] for backend in BACKENDS}
            for number in range(ROUNDS):
                for backend in BACKENDS:
                    progress(f"training, {size}, round {number + 1}, {backend}")
                    if rounds[backend] is None:
                        continue
                    result = run_one(program, backend, options, folder)
                    if isinstance(result, str):
                        collection.missing[f"training, {size}, {backend}"] = result
                        rounds[backend] = None
                    else:
                        rounds[backend].append(result)
            for backend, results in rounds.items():
                if results:
                    collection.training.append({
                        "size": size, "options": " ".join(options), "backend": backend, "ranks": RANKS,
                        "step_ms": statistics.median(step for step, _ in results),
                        "communication_share": statistics.median(share for _, share in results),
                        "rounds": len(results)})
