"""The goals, as functions of the measured medians.

`medians` maps (ranks, collective, variant, size in bytes) to microseconds. A ratio is the best baseline's time over
Tutti's: above 1 means Tutti is faster. A goal whose figures were not measured is left out.
"""
import math

BASELINES = ["openmpi", "mpich", "gloo"]
KIB, MIB = 1024, 1024 * 1024
# The machine's limit for each collective: the work that roofline_memory measured.
LIMIT_OF = {"all_reduce": "all_reduce", "deterministic": "all_reduce", "reduce_scatter": "reduce_scatter",
            "reduce": "reduce_scatter"}


def geometric_mean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values))


def ratios(medians, ranks, collective, variant, low=0, high=math.inf):
    """{size: best baseline's time / variant's time}"""
    found = {}
    for (at_ranks, at_collective, name, size), mine in medians.items():
        if (at_ranks, at_collective, name) != (ranks, collective, variant) or not low <= size <= high:
            continue
        baselines = [medians[key] for baseline in BASELINES if (key := (ranks, collective, baseline, size)) in medians]
        if baselines and mine > 0:
            found[size] = min(baselines) / mine
    return dict(sorted(found.items()))


def limit_ratios(medians, ranks, collective, variant, low=0):
    """{size: the machine's limit / variant's time}"""
    work = LIMIT_OF.get(collective, "copy")
    found = {}
    for (at_ranks, at_collective, name, size), mine in medians.items():
        limit = medians.get((ranks, work, "limit", size))
        if (at_ranks, at_collective, name) == (ranks, collective, variant) and size >= low and limit and mine > 0:
            found[size] = limit / mine
    return dict(sorted(found.items()))


def print_size(size):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def goal(text, values, mean=None, least=None):
    """One line of the table of goals: wanted means, wanted minimum over sizes; None where nothing was measured."""
    if not values:
        return None
    worst = min(values, key=values.get)
    measured = []
    met = True
    if mean is not None:
        measured.append(f"mean {geometric_mean(values.values()):.2f}")
        met = met and geometric_mean(values.values()) >= mean
    if least is not None:
        measured.append(f"least {values[worst]:.2f} at {print_size(worst)}")
        met = met and values[worst] >= least
    return {"goal": text, "measured": ", ".join(measured), "met": met}


def evaluate(medians, rank_counts):
    large = (4 * KIB, 64 * MIB)
    goals = []
    if 2 in rank_counts:
        registered = "tutti registered"
        goals += [
            goal("all_reduce, 2 ranks, registered, 4 KiB to 64 MiB: mean at least 3.5, no size under 2.0",
                 ratios(medians, 2, "all_reduce", registered, *large), mean=3.5, least=2.0),
            goal("all_reduce, 2 ranks, registered, 8 B to 512 B: no size under 1.0",
                 ratios(medians, 2, "all_reduce", registered, 8, 512), least=1.0),
            goal("all_reduce, 2 ranks, plain, 4 KiB to 64 MiB: mean at least 2.0",
                 ratios(medians, 2, "all_reduce", "tutti plain", *large), mean=2.0),
        ]
    if 4 in rank_counts:
        goals += [
            goal("all_reduce, 4 ranks, registered, 4 KiB to 64 MiB: mean at least 2.0",
                 ratios(medians, 4, "all_reduce", "tutti registered", *large), mean=2.0),
            goal("all_reduce, 4 ranks, plain, 4 KiB to 64 MiB: mean at least 1.5",
                 ratios(medians, 4, "all_reduce", "tutti plain", *large), mean=1.5),
        ]
    for ranks in rank_counts:
        goals.append(goal(f"all_reduce, {ranks} ranks, registered, from 1 MiB: at least 0.8 of the machine's limit",
                          limit_ratios(medians, ranks, "all_reduce", "tutti registered", MIB), least=0.8))
        for collective in ("reduce_scatter", "all_gather", "broadcast", "alltoall"):
            goals.append(goal(f"{collective}, {ranks} ranks, registered: mean at least 1.5, no size under 0.9",
                              ratios(medians, ranks, collective, "tutti registered"), mean=1.5, least=0.9))
    return [row for row in goals if row is not None]


CALL_NS = 100  # announcing, looking the plan up, gate, walk: what a call adds to an exchange by hand


def predictions(medians, plan_walk):
    """The predicted and the measured time of a call (microseconds).

    2 ranks, registered, two-shot of S bytes: each rank reads its half of both inputs and writes it to both outputs, so
    2S bytes pass through its core (stores past the caches need no read for ownership): as many as when each rank copies
    S bytes, which the machine's limit measures.
    One-shot of 8 B: a line each way at the same time, as in the exchange by hand, and the call's instructions.
    """
    rows = []
    by_key = {row["key"]: row["ns"] for row in (plan_walk or {}).get("results", [])}
    measured = medians.get((2, "all_reduce", "tutti registered", 8))
    if "hand_8" in by_key and measured:
        predicted = (by_key["hand_8"] + CALL_NS) / 1000
        rows.append({"what": "all_reduce, 2 ranks, 8 B", "how": f"by hand + {CALL_NS} ns",
                     "predicted_us": predicted, "measured_us": measured})
    for size in (MIB, 4 * MIB, 16 * MIB, 64 * MIB):
        measured = medians.get((2, "all_reduce", "tutti registered", size))
        copy = medians.get((2, "copy", "limit", size))
        if measured and copy:
            how = f"2S bytes per rank at {2 * size / copy / 1000:.1f} GB/s"
            rows.append({"what": f"all_reduce, 2 ranks, registered, S = {print_size(size)}", "how": how,
                         "predicted_us": copy, "measured_us": measured})
    return rows
