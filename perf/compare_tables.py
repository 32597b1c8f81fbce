"""The results as Markdown and as JSON."""
import json

import compare_goals
from compare_goals import PEERS, geometric_mean, print_size


def print_time(microseconds):
    if microseconds is None:
        return "-"
    if microseconds < 10:
        return f"{microseconds:.2f}"
    return f"{microseconds:.1f}" if microseconds < 1000 else f"{microseconds:.0f}"


def goals_table(goals):
    lines = ["## Goals", "", "Ratios are the best peer's time over Tutti's; means are geometric, over sizes.", "",
             "| goal | measured | met |", "|---|---|---|"]
    lines += [f"| {row['goal']} | {row['measured']} | {'yes' if row['met'] else '**no**'} |" for row in goals]
    return lines


def one_table(ranks, collective, contenders, collection, medians):
    """Microseconds by size and contender, and the ratio to the best peer for Tutti's columns."""
    sizes = sorted({size for (at_ranks, at, name, size) in medians
                    if (at_ranks, at) == (ranks, collective) and name != "limit"})
    contenders = [name for name in contenders if any(key[:3] == (ranks, collective, name) for key in medians)]
    tuttis = [name for name in contenders if name.startswith("tutti")]
    head = ["size", *contenders, "machine's limit", *[f"best peer / {name}" for name in tuttis], "algorithm"]
    lines = [f"### {collective}, {ranks} ranks (microseconds)", "", "| " + " | ".join(head) + " |",
             "|" + "---:|" * (len(head) - 1) + "---|"]
    work = compare_goals.LIMIT_OF.get(collective, "copy")
    by_tutti = {name: compare_goals.ratios(medians, ranks, collective, name) for name in tuttis}
    for size in sizes:
        cells = [print_size(size)]
        cells += [print_time(medians.get((ranks, collective, name, size))) for name in contenders]
        cells.append(print_time(medians.get((ranks, work, "limit", size))))
        cells += [f"{by_tutti[name][size]:.2f}" if size in by_tutti[name] else "-" for name in tuttis]
        cells.append(collection.algorithms.get((ranks, collective, "tutti registered", size), "-"))
        lines.append("| " + " | ".join(cells) + " |")
    means = [f"{name} {geometric_mean(values.values()):.2f}" for name, values in by_tutti.items() if values]
    if means:
        lines += ["", f"Best peer's time over Tutti's, geometric mean over all sizes: {', '.join(means)}."]
    return lines + [""]


def write_table(machine, arguments, collection, medians, goals):
    contenders = [name for name in arguments.contenders if any(key[2] == name for key in medians)]
    lines = ["# Tutti and its peers", "",
             f"{machine['processor']}, {machine['cores']} cores, {machine['system']}, {machine['date']}, commit "
             f"{machine['commit']}. f32, sum, out of place; median of {arguments.rounds} interleaved rounds; "
             f"{'cold caches (each call moves on through memory)' if arguments.cold else 'the same buffers in each call'}.",
             ""]
    if machine["load_before"] > 0.5:
        lines += [f"Other programs were running (load average {machine['load_before']} before the start): the figures "
                  "say little.", ""]
    if goals:
        lines += goals_table(goals) + [""]
    for ranks in arguments.ranks:
        for collective in arguments.collectives:
            if any(key[:2] == (ranks, collective) and key[2] in PEERS + contenders for key in medians):
                lines += one_table(ranks, collective, contenders, collection, medians)
    if collection.missing:
        lines += ["## Not measured", ""] + [f"- {what}: {why}" for what, why in collection.missing.items()] + [""]
    return "\n".join(lines)


def write_json(machine, arguments, collection, medians, goals):
    results = []
    for (ranks, collective, contender, size), median in sorted(medians.items()):
        times = collection.times[(ranks, collective, contender, size)]
        factor = collection.factors.get((ranks, collective, size))
        results.append({"ranks": ranks, "collective": collective, "contender": contender, "size": size,
                        "time_us": median, "min_us": min(times), "max_us": max(times), "rounds": len(times),
                        "bus_bandwidth": factor / median if factor and contender != "limit" else None,
                        "algorithm": collection.algorithms.get((ranks, collective, contender, size))})
    return json.dumps({"machine": machine, "rounds": arguments.rounds, "cold": arguments.cold, "goals": goals,
                       "missing": collection.missing, "results": results}, indent=1) + "\n"
