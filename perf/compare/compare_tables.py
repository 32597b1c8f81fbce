"""The results as Markdown and as JSON."""
import json

import compare_goals
from compare_goals import geometric_mean, print_size


def print_time(microseconds):
    if microseconds is None:
        return "-"
    if microseconds < 10:
        return f"{microseconds:.2f}"
    return f"{microseconds:.1f}" if microseconds < 1000 else f"{microseconds:.0f}"


def goals_table(goals):
    lines = ["## Goals", "", "Ratios are the best baseline's time over Tutti's; means are geometric, over sizes.", "",
             "| goal | measured | met |", "|---|---|---|"]
    lines += [f"| {row['goal']} | {row['measured']} | {'yes' if row['met'] else '**no**'} |" for row in goals]
    return lines


def one_table(ranks, collective, variants, collection, medians):
    """Microseconds by size and variant, and the ratio to the best baseline for Tutti's columns."""
    sizes = sorted({size for (at_ranks, at, name, size) in medians
                    if (at_ranks, at) == (ranks, collective) and name != "limit"})
    variants = [name for name in variants if any(key[:3] == (ranks, collective, name) for key in medians)]
    tuttis = [name for name in variants if name.startswith("tutti")]
    head = ["size", *variants, "machine's limit", *[f"best baseline / {name}" for name in tuttis], "algorithm"]
    lines = [f"### {collective}, {ranks} ranks (microseconds)", "", "| " + " | ".join(head) + " |",
             "|" + "---:|" * (len(head) - 1) + "---|"]
    work = compare_goals.LIMIT_OF.get(collective, "copy")
    by_tutti = {name: compare_goals.ratios(medians, ranks, collective, name) for name in tuttis}
    for size in sizes:
        cells = [print_size(size)]
        cells += [print_time(medians.get((ranks, collective, name, size))) for name in variants]
        cells.append(print_time(medians.get((ranks, work, "limit", size))))
        cells += [f"{by_tutti[name][size]:.2f}" if size in by_tutti[name] else "-" for name in tuttis]
        cells.append(collection.algorithms.get((ranks, collective, "tutti registered", size), "-"))
        lines.append("| " + " | ".join(cells) + " |")
    means = [f"{name} {geometric_mean(values.values()):.2f}" for name, values in by_tutti.items() if values]
    if means:
        lines += ["", f"Best baseline's time over Tutti's, geometric mean over all sizes: {', '.join(means)}."]
    return lines + [""]


def deterministic_table(ranks, collection, medians):
    """Tutti's all_reduce as it is and with the same bits for every algorithm and placement."""
    head = ["size", "default", "deterministic", "deterministic / default", "algorithms"]
    lines = [f"### Deterministic mode: all_reduce, {ranks} ranks, registered (microseconds)", "",
             "| " + " | ".join(head) + " |", "|---:|---:|---:|---:|---|"]
    names = ("tutti registered", "tutti deterministic")
    sizes = sorted({size for (at_ranks, at, _, size) in medians if (at_ranks, at) == (ranks, "deterministic")})
    prices = []
    for size in sizes:
        keys = [(ranks, "deterministic", name, size) for name in names]
        default, exact = (medians.get(key) for key in keys)
        cells = [print_size(size), print_time(default), print_time(exact)]
        if default and exact:
            prices.append(exact / default)
        cells.append(f"{exact / default:.2f}" if default and exact else "-")
        cells.append(", ".join(dict.fromkeys(collection.algorithms.get(key, "-") for key in keys)))
        lines.append("| " + " | ".join(cells) + " |")
    if prices:
        lines += ["", f"Price, geometric mean over sizes: {geometric_mean(prices):.2f}."]
    return lines + [""]


def plan_walk_table(report):
    lines = ["## What walking a plan costs", "",
             f"Two threads with a core each; nanoseconds per call or step, median of {report['rounds']} rounds in which "
             f"all cases take turns, {report['calls']} calls each.", "",
             "| what | ns | least | most |", "|---|---:|---:|---:|"]
    lines += [f"| {row['what']} | {row['ns']:.1f} | {row['min_ns']:.1f} | {row['max_ns']:.1f} |"
              for row in report["results"]]
    return lines + [""]


def predictions_table(rows):
    lines = ["## Predictions and outcomes (microseconds)", "", "| what | by | predicted | measured | measured / predicted |",
             "|---|---|---:|---:|---:|"]
    lines += [f"| {row['what']} | {row['how']} | {print_time(row['predicted_us'])} | {print_time(row['measured_us'])} | "
              f"{row['measured_us'] / row['predicted_us']:.2f} |" for row in rows]
    return lines + [""]


def write_table(machine, arguments, collection, medians, goals, parts=()):
    """`parts`: tables that are lines already."""
    lines = ["# Tutti compared with its baselines", "",
             f"{machine['processor']}, {machine['cores']} cores, {machine['system']}, {machine['date']}, commit "
             f"{machine['commit']}. f32, sum, out of place; medians of interleaved rounds; "
             f"{'cold caches (each call moves on through memory)' if arguments.cold else 'the same buffers in each call'}.",
             ""]
    if machine["load_before"] > 0.5:
        lines += [f"Other programs were running (load average {machine['load_before']} before the start): the figures "
                  "say little.", ""]
    if goals:
        lines += goals_table(goals) + [""]
    predicted = compare_goals.predictions(medians, collection.plan_walk)
    if predicted:
        lines += predictions_table(predicted)
    if collection.plan_walk:
        lines += plan_walk_table(collection.plan_walk)
    for part in parts:
        lines += part
    for ranks in arguments.ranks:
        for name in arguments.tables:
            if not any(key[:2] == (ranks, name) for key in medians):
                continue
            lines += (deterministic_table(ranks, collection, medians) if name == "deterministic"
                      else one_table(ranks, name, arguments.variants, collection, medians))
    if collection.notes:
        lines += ["## Measured less", ""] + [f"- {note}" for note in collection.notes] + [""]
    if collection.missing:
        lines += ["## Not measured", ""] + [f"- {what}: {why}" for what, why in collection.missing.items()] + [""]
    return "\n".join(lines)


def write_json(machine, arguments, collection, medians, goals):
    results = []
    for (ranks, collective, variant, size), median in sorted(medians.items()):
        times = collection.times[(ranks, collective, variant, size)]
        factor = collection.factors.get((ranks, collective, size))
        results.append({"ranks": ranks, "collective": collective, "variant": variant, "size": size,
                        "time_us": median, "min_us": min(times), "max_us": max(times), "rounds": len(times),
                        "bus_bandwidth": factor / median if factor and variant != "limit" else None,
                        "algorithm": collection.algorithms.get((ranks, collective, variant, size))})
    return json.dumps({"machine": machine, "cold": arguments.cold, "goals": goals,
                       "predictions": compare_goals.predictions(medians, collection.plan_walk),
                       "plan_walk": collection.plan_walk, "parts": collection.parts, "notes": collection.notes,
                       "missing": collection.missing, "results": results}, indent=1) + "\n"
