"""The PyTorch backend compared with PyTorch's own: calls through the Python API (torch_compare.py), what a call costs more
than the same call in C++, and training steps of PyTorch's DDP and FSDP2 over Tutti and over Gloo (torch_reference.py)."""
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import compare_plots
import compare_training
from compare_goals import KIB, geometric_mean, print_size
from compare_measure import describe_failure, run_program

HERE = pathlib.Path(__file__).resolve().parent
TIMEOUT = 900
STEPS, ROUNDS = 60, 5
COST_GOAL_US = 6
MOVERS = ["all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast"]
# Why this size: perf/findings.md, "Training". Of AdamW's forms the one that takes least, so that communication counts most.
STEP_OPTIONS = [*compare_training.SIZES["communication-bound"], "--fused"]
STEP_GOALS = {"ddp": 1.5, "fsdp2": 1.8}
STEP_NAMES = {"ddp": "DDP", "fsdp2": "FSDP2"}
STEP_BACKENDS = {"ddp": ["tutti", "gloo", "none"], "fsdp2": ["tutti", "gloo"]}
COLOURS = {"tutti": "#c0392b", "gloo": "#7d8b8c", "mpi": "#2471a3"}


def environment(arguments):
    """Where the build left the package comes first."""
    package = arguments.bin.parent / "torch_backend" / "site"
    paths = [str(package)] if package.exists() else []
    paths += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    # Freed memory is kept, as in compare_training.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MALLOC_TRIM_THRESHOLD_": "2147483647",
            "MALLOC_MMAP_THRESHOLD_": "2147483647"}


def why_not(arguments):
    """A sentence, or None when everything is there."""
    python = compare_training.python_with_torch()
    if python is None:
        return "no Python with torch (./dev build makes one in .venv)"
    done = subprocess.run([python, "-c", "import tutti_torch"], capture_output=True, text=True,
                          env=environment(arguments))
    return None if done.returncode == 0 else f"tutti_torch: {done.stderr.strip().splitlines()[-1]}"


def steps(arguments):
    return len(arguments.ranks) * (2 + sum(map(len, STEP_BACKENDS.values())) * (arguments.rounds or ROUNDS))


def run_python(arguments, program, words, path):
    """True, or a sentence that says why there is nothing in `path`."""
    command = [compare_training.python_with_torch(), str(HERE / program), *words, "--json", path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment(arguments))
    except subprocess.TimeoutExpired:
        return f"{program} did not end within {TIMEOUT} s"
    return True if done.returncode == 0 else describe_failure(done, program.removesuffix(".py"))


def measure_calls(arguments, ranks, folder):
    path = os.path.join(folder, "calls.json")
    words = ["--ranks", str(ranks), "--min", arguments.min, "--max", arguments.max, "--time", str(arguments.time),
             "--factor", str(arguments.factor or 4), "--rounds", str(arguments.rounds or ROUNDS)]
    done = run_python(arguments, "torch_compare.py", words, path)
    return json.loads(pathlib.Path(path).read_text()) if done is True else done


def measure_in_cpp(arguments, ranks, folder):
    """Microseconds of the C++ call: 8 B, in place, memory that is not registered, as a tensor's is; None without it."""
    path = os.path.join(folder, "cpp.json")
    report = run_program([str(arguments.bin / "all_reduce_perf"), "--ranks", str(ranks), "-b", "8", "-e", "8", "--time",
                          "0.1", "--backend", "tutti", "--memory", "plain", "--halves", "in", "-J", path], path)
    return None if isinstance(report, str) else report["results"][0]["in_place"]["time"]


def measure_steps(arguments, ranks, folder, collection, progress):
    rounds = {(parallel, backend): [] for parallel, backends in STEP_BACKENDS.items() for backend in backends}
    path = os.path.join(folder, "steps.jsonl")
    for number in range(arguments.rounds or ROUNDS):
        for (parallel, backend), found in rounds.items():
            what = f"torch, {STEP_NAMES[parallel]} over {backend}, {ranks} ranks"
            progress(f"{what}, round {number + 1}")
            if what in collection.missing:
                continue
            words = ["--ranks", str(ranks), "--steps", str(STEPS), "--parallel", parallel, "--backend", backend]
            done = run_python(arguments, "torch_reference.py", [*words, *STEP_OPTIONS], path)
            if done is True:
                found.append(compare_training.read_reference(path))
            else:
                collection.missing[what] = done
    return [{"ranks": ranks, "parallel": parallel, "backend": backend, "loss": found[-1]["loss"],
             "step_ms": statistics.median(result["step_ms"] for result in found),
             "rounds": [result["step_ms"] for result in found]}
            for (parallel, backend), found in rounds.items() if found]


def measure(arguments, collection, progress):
    """{"calls": one report for each number of ranks, "cpp_us": {ranks: ...}, "steps": rows}"""
    why = why_not(arguments)
    if why:
        collection.missing["torch"] = why
        return
    found = {"calls": [], "cpp_us": {}, "steps": []}
    with tempfile.TemporaryDirectory(prefix="tutti_compare_") as folder:
        for ranks in arguments.ranks:
            progress(f"torch, calls, {ranks} ranks")
            report = measure_calls(arguments, ranks, folder)
            if isinstance(report, str):
                collection.missing[f"torch, calls, {ranks} ranks"] = report
            else:
                found["calls"].append(report)
            progress(f"torch, the call in C++, {ranks} ranks")
            found["cpp_us"][str(ranks)] = measure_in_cpp(arguments, ranks, folder)
            found["steps"] += measure_steps(arguments, ranks, folder, collection, progress)
    if found["calls"] or found["steps"]:
        collection.parts["torch"] = found


def times_of(report, collective):
    """{backend: {size: microseconds}}"""
    found = {}
    for row in report["results"]:
        if row["collective"] == collective:
            found.setdefault(row["backend"], {})[row["size"]] = row["time_us"]
    return found


def call_ratios(report, collective, low=0, high=1 << 62):
    """{size: Gloo's time over Tutti's}, each the median over rounds of the two that ran close to each other."""
    rounds = {(row["backend"], row["size"]): row["rounds_us"] for row in report["results"]
              if row["collective"] == collective}
    return {size: statistics.median(b / a for a, b in zip(times, rounds["gloo", size]))
            for (backend, size), times in rounds.items()
            if backend == "tutti" and low <= size <= high and ("gloo", size) in rounds}


def added_us(found, report):
    """What a call through torch takes beyond the same call in C++, or None."""
    cpp = found["cpp_us"].get(str(report["ranks"]))
    return None if cpp is None or not report["cost_us"] else report["cost_us"]["dist.all_reduce"] - cpp


def step_ratio(rows, ranks, parallel):
    times = {row["backend"]: row["rounds"] for row in rows if (row["ranks"], row["parallel"]) == (ranks, parallel)}
    if not {"tutti", "gloo"} <= times.keys():
        return None
    return statistics.median(b / a for a, b in zip(times["tutti"], times["gloo"]))


def goal_of(text, values, least):
    worst = min(values, key=values.get)
    return {"goal": text, "measured": f"least {values[worst]:.2f} at {print_size(worst)}, mean "
            f"{geometric_mean(values.values()):.2f}", "met": values[worst] >= least}


def goals(found):
    rows = []
    for report in found["calls"]:
        ranks = report["ranks"]
        wanted = [("all_reduce", 0, 4 * KIB, 10, "to 4 KiB"), ("all_reduce", 64 * KIB, 1 << 62, 4, "from 64 KiB")]
        wanted += [(name, 0, 1 << 62, 3, "every size") for name in MOVERS]
        for name, low, high, least, where in wanted:
            values = call_ratios(report, name, low, high)
            if values:
                text = f"torch, {name}, {ranks} ranks, {where}: at least {least} times as fast as over Gloo"
                rows.append(goal_of(text, values, least))
        added = added_us(found, report)
        if added is not None and ranks == 2:
            rows.append({"goal": f"torch, 2 ranks: at most {COST_GOAL_US} us more per call than in C++",
                         "measured": f"{added:.2f} us", "met": added <= COST_GOAL_US})
    for parallel, least in STEP_GOALS.items():
        value = step_ratio(found["steps"], 2, parallel)
        if value is not None:
            text = f"torch, a step of {STEP_NAMES[parallel]}, 2 ranks, communication-bound"
            rows.append({"goal": f"{text}: at least {least} times as fast as over Gloo", "measured": f"{value:.2f}",
                         "met": value >= least})
    return rows


def calls_table(report, collective):
    times = times_of(report, collective)
    backends = list(COLOURS)
    backends = [name for name in backends if name in times] + [name for name in times if name not in backends]
    ratios = call_ratios(report, collective)
    lines = [f"### torch.distributed, {collective}, {report['ranks']} ranks (microseconds)", "",
             "| size | " + " | ".join(backends) + " | gloo / tutti |", "|" + "---:|" * (len(backends) + 2)]
    for size in sorted({size for by_size in times.values() for size in by_size}):
        cells = [format(times[name][size], ".1f") if size in times[name] else "-" for name in backends]
        lines.append(f"| {print_size(size)} | " + " | ".join(cells) + f" | {ratios[size]:.2f} |" if size in ratios else
                     f"| {print_size(size)} | " + " | ".join(cells) + " | - |")
    if ratios:
        mean = geometric_mean(ratios.values())
        lines += ["", f"Gloo's time over Tutti's, geometric mean over all sizes: {mean:.2f}."]
    return lines + [""]


def cost_table(found):
    lines = ["### What a call through PyTorch costs: all_reduce, 8 B, in place (microseconds)", "",
             "| ranks | in C++ | the backend's method | torch.distributed | added to C++ | of it torch's own (a "
             "backend that does nothing) |", "|---:|---:|---:|---:|---:|---:|"]
    for report in found["calls"]:
        cost, added = report["cost_us"], added_us(found, report)
        if cost and added is not None:
            lines.append(f"| {report['ranks']} | {found['cpp_us'][str(report['ranks'])]:.2f} | {cost['backend']:.2f} | "
                         f"{cost['dist.all_reduce']:.2f} | {added:.2f} | {cost['no backend']:.2f} |")
    return lines + [""] if len(lines) > 4 else []


def steps_table(rows):
    lines = ["### Steps of PyTorch's DDP and FSDP2 over both", "",
             f"The GPT of `train_gpt`, `{' '.join(STEP_OPTIONS)}`, {STEPS} steps; medians after warm-up and over rounds.",
             "", "| ranks | | backend | ms per step | least to most | loss | gloo / tutti |",
             "|---:|---|---|---:|---:|---:|---:|"]
    for row in rows:
        value = step_ratio(rows, row["ranks"], row["parallel"])
        lines.append(f"| {row['ranks']} | {STEP_NAMES[row['parallel']]} | {row['backend']} | {row['step_ms']:.2f} | "
                     f"{min(row['rounds']):.1f} to {max(row['rounds']):.1f} | "
                     f"{'-' if row['backend'] == 'none' else format(row['loss'], '.4f')} | "
                     f"{'-' if value is None or row['backend'] != 'tutti' else format(value, '.2f')} |")
    return lines + ["", "none: a hook that sends nothing, on ranks that do not wait for each other, so what DDP itself takes.", ""]


def table(found):
    lines = ["## PyTorch: the backend \"tutti\" compared with PyTorch's own", "",
             "Through the Python API, f32 (bytes where nothing is added), plain tensors, one thread per rank; medians "
             "of interleaved rounds.", ""]
    lines += cost_table(found)
    lines += steps_table(found["steps"]) if found["steps"] else []
    for report in found["calls"]:
        for collective in dict.fromkeys(row["collective"] for row in report["results"]):
            lines += calls_table(report, collective)
        lines += [f"- {what}: {why}" for what, why in report["missing"].items()] + [""] * bool(report["missing"])
    return lines


def draw(found, pyplot, folder):
    """Time over size: a row of panels for each number of ranks."""
    if not found["calls"]:
        return None
    names = list(dict.fromkeys(row["collective"] for report in found["calls"] for row in report["results"]))
    columns, lines = len(names), len(found["calls"])
    figure, axes = pyplot.subplots(lines, columns, figsize=(3.4 * columns, 3.2 * lines), squeeze=False)
    for report, line in zip(found["calls"], axes):
        for name, axis in zip(names, line):
            for backend, by_size in times_of(report, name).items():
                axis.plot(list(by_size), list(by_size.values()), color=COLOURS.get(backend, "black"), label=backend,
                          marker="o", markersize=2.5, linewidth=1.3)
            compare_plots.over_sizes(axis, f"{name}, {report['ranks']} ranks", "time (us)")
    axes.flat[0].legend(fontsize=7)
    figure.tight_layout()
    path = folder / "torch_calls.png"
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return path
