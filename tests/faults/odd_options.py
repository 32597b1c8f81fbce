"""faults.odd_options: each option of each program with each kind of odd value.

    odd_options.py BIN_FOLDER [--every N]     # of the cases each N-th, as the default test does

A program may take a value, or refuse it in a few words of its own and with a status that is none of a crash; within 20 s.
"""
import argparse
import pathlib
import re
import subprocess
import sys

ODD = {"empty": "", "negative": "-1", "huge": "99999999999999999999", "fraction": "1.5", "unit": "8x", "text": "odd",
       "infinite": "inf", "no number": "nan"}
LIMIT = 20  # seconds
MOST_WORDS = 2000  # characters of a refusal; tutti lists what there is
PERF = ["-b", "8", "-e", "8", "-n", "1", "-w", "0"]
GPT = ["--steps", "1", "--layers", "1", "--heads", "1", "--width", "8", "--context", "8", "--batch", "1", "--threads", "1"]
VISION = ["--images", "8", "--test-images", "8", "--epochs", "1", "--batch", "4", "--threads", "1"]
PROGRAMS = {  # and the words by which each ends soon
    "all_reduce_perf": PERF, "broadcast_perf": PERF, "sendrecv_perf": PERF, "alltoall_perf": PERF,
    "train_gpt": GPT, "train_vision": VISION,
}
SUBCOMMANDS = ["info", "plan", "verify", "topology", "explain", "selection", "options"]
# What they name is made by the program: files that a test would leave behind.
LEFT_OUT = {"--csv", "--json-lines", "--plot", "--timeline", "-J", "--output_file", "--data", "--svg", "--json", "--help", "-h",
            "--help-all", "--version"}


def options_of(command):
    """The long or only name of each option that takes a value."""
    text = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=LIMIT).stdout
    found = re.findall(r"^\s{2,}((?:-\w,)?--?[\w-]+(?:,--[\w-]+)*) (?:[A-Z:\[\d{].*)$", text, re.MULTILINE)
    names = [names.split(",")[-1] for names in found]
    return sorted({name for name in names if name not in LEFT_OUT})


def without(words, name):
    """A base that does not give the option already."""
    short = {"--minbytes": "-b", "--maxbytes": "-e", "--iters": "-n", "--warmup_iters": "-w"}
    left = []
    pairs = list(zip(words[::2], words[1::2]))
    for option, value in pairs:
        if option not in (name, short.get(name)):
            left += [option, value]
    return left


def judged(command):
    """What is wrong with the way it ended; None: nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, errors="replace", stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"did not end within {LIMIT} s"
    words = done.stderr.strip() or done.stdout.strip()
    if done.returncode < 0 or done.returncode in (134, 139):
        return f"was ended by a signal ({done.returncode}): {words[-300:]}"
    if done.returncode == 0:
        return None
    if not words:
        return f"ended with {done.returncode} and said nothing"
    if re.search(r"\d{60}", words) or len(words) > MOST_WORDS or "terminate called" in words or "frame #" in words:
        return f"said too much: {words[:300]}"
    return None


def cases(folder):
    for program, base in PROGRAMS.items():
        path = folder / program
        if not path.exists():
            continue
        for name in options_of([path]):
            for kind, value in ODD.items():
                yield f"{program} {name} {kind}", [str(path), *without(base, name), f"{name}={value}" if name.startswith("--") else name,
                                                   *([] if name.startswith("--") else [value])]
            yield f"{program} {name} twice", [str(path), *without(base, name), name, "1", name, "2"]
    for subcommand in SUBCOMMANDS:
        for name in options_of([folder / "tutti", subcommand]):
            for kind, value in ODD.items():
                yield f"tutti {subcommand} {name} {kind}", [str(folder / "tutti"), subcommand, f"{name}={value}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    everything = list(cases(options.folder))[::options.every]
    wrong = 0
    for what, command in everything:
        found = judged(command)
        if found:
            wrong += 1
            print(f"{what}: {found}\n    {' '.join(command)}")
    print(f"{len(everything)} cases, {wrong} wrong")
    return 1 if wrong or not everything else 0


if __name__ == "__main__":
    sys.exit(main())
