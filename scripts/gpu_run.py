"""How the stages of ./dev gpu run: commands with time limits, and what is kept of them from call to call (gpu_stages.py).

What came of each command stands in OUT/stages.json and OUT/stages.md as soon as it has ended, and what it said in
OUT/logs/STAGE.log. So a run that was cut off, by whatever, goes on behind the last command that has ended.
"""
import dataclasses
import json
import os
import pathlib
import resource
import shlex
import signal
import subprocess
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
SLICE = 480  # seconds of one call of ./dev gpu: with what starts and reports it, less than ten minutes
LIMIT = 420  # seconds of a command: less than a slice, so that one that begins a slice has all of them
LEAST = 15  # seconds: with less than that left no command begins
GRACE = 5  # seconds that a command has to end by itself
LEFT = "{left}"  # as a word of a command: the seconds that it has, less those of its report
REPORT = 30
MORE = 75  # exit status of a command that has more to do, as EX_TEMPFAIL of sysexits.h
NO_END = float("inf")
UNLIMITED = 24 * 3600  # seconds, where a number is wanted

PASSED, FAILED, CUT_OFF, NOT_RUN = "passed", "FAILED", "cut off", "not run"

Need = Callable[[], str | None]  # None, or why a stage cannot run


@dataclasses.dataclass
class Command:
    words: list[str]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    limit: float = LIMIT
    goes_on: bool = False  # where it was, when it is run again: too little time is no failure, and it has all that is left

    def __str__(self) -> str:
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.environment.items()), shlex.join(self.words)])


@dataclasses.dataclass
class Stage:
    name: str
    what: str
    preparations: list[Command]  # of each call; a failure ends the stage
    commands: list[Command]  # which do not need each other; one that has passed is not run again
    before: list[Need] = dataclasses.field(default_factory=list)  # asked before the preparations
    needs: list[Need] = dataclasses.field(default_factory=list)  # asked behind them


def end(process: subprocess.Popen) -> None:
    """It and all that it started: asked first, since some of those have sessions of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=GRACE)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def run_command(command: Command, log: pathlib.Path, left: float) -> tuple[str, str]:
    """What it says goes to the end of `log`. Returns PASSED, FAILED or CUT_OFF, and in words why."""
    seconds = left if command.goes_on else min(command.limit, left)
    words = [str(int(max(1, min(seconds, UNLIMITED) - REPORT))) if word == LEFT else word for word in command.words]
    with log.open("a") as file:
        print(f"\n$ {command}", file=file, flush=True)
        try:
            process = subprocess.Popen(words, env={**os.environ, **command.environment}, stdin=subprocess.DEVNULL,
                                       stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True)
        except OSError as error:
            return FAILED, f"{words[0]} cannot be started: {error.strerror}"
        try:
            status = process.wait(timeout=min(seconds, UNLIMITED))
        except subprocess.TimeoutExpired:
            return CUT_OFF if command.goes_on or seconds < command.limit else FAILED, f"it did not end within {seconds:.0f} s"
        finally:
            end(process)
    if status == MORE and command.goes_on:
        return CUT_OFF, "it has more to do"
    return (PASSED, "") if status == 0 else (FAILED, f"it ended with status {status}")


def processor_seconds() -> float:
    """Of all commands that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def last_lines(log: pathlib.Path, count: int) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-count:]


class Outcomes:
    """What came of the stages, kept in OUT from call to call. Of a stage: its outcome, how many commands it has, the seconds
    and processor seconds that it took, why it was not run, and by their text the commands that have passed or failed."""

    def __init__(self, out: pathlib.Path, names: list[str], tree: str = "") -> None:
        """What another tree has come to counts for nothing here; `tree` is a digest of its files."""
        self.out, self.names, self.tree, self.of = out, names, tree, {}
        try:
            kept = json.loads((out / "stages.json").read_text())
        except (OSError, ValueError):
            return
        if kept.get("tree") == tree:
            self.of = kept["stages"]

    def outcome(self, name: str) -> str | None:
        return self.of.get(name, {}).get("outcome")

    def left(self) -> list[str]:
        """The stages that have not passed; those that have failed come last, so that they hold up no other one."""
        left = [name for name in self.names if self.outcome(name) != PASSED]
        return sorted(left, key=lambda name: self.outcome(name) == FAILED)

    def forget(self, name: str) -> None:
        self.of.pop(name, None)

    def stage(self, name: str) -> dict:
        return self.of.setdefault(name, {"outcome": CUT_OFF, "all": 0, "seconds": 0, "processor_seconds": 0, "why": [],
                                         "passed": [], "failed": {}})

    def keep(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        for name, text in [("stages.json", json.dumps({"tree": self.tree, "stages": self.of}, indent=1) + "\n"), ("stages.md", self.text())]:
            (self.out / f"{name}.new").write_text(text)
            (self.out / f"{name}.new").replace(self.out / name)

    def text(self) -> str:
        lines = ["# ./dev gpu: what came of each stage", "", "| stage | outcome | commands that passed | s | processor s | |",
                 "|---|---|---|---|---|---|"]
        for name in self.names:
            if name not in self.of:
                lines.append(f"| {name} | not begun | | | | |")
                continue
            of = self.of[name]
            why = "<br>".join([*of["why"], *(f"{why}: {command}" for command, why in of["failed"].items())]).replace("|", "\\|")
            lines.append(f"| {name} | {of['outcome']} | {len(of['passed'])} of {of['all']} | {of['seconds']:.0f} | "
                         f"{of['processor_seconds']:.0f} | {why} |")
        return "\n".join(lines) + "\n"


def first_reason(needs: list[Need]) -> str | None:
    return next((why for need in needs if (why := need())), None)


class StageRun:
    """One stage in one call: `seconds` for it, behind what earlier calls have done of it."""

    def __init__(self, stage: Stage, outcomes: Outcomes, seconds: float) -> None:
        self.stage, self.outcomes = stage, outcomes
        self.end = time.monotonic() + seconds
        self.log = outcomes.out / "logs" / f"{stage.name}.log"
        self.of = outcomes.stage(stage.name)
        self.of.update(all=len(stage.commands), why=[])

    def run(self) -> str:
        """Its outcome."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.of["outcome"] = self.outcome()
        self.outcomes.keep()
        return self.of["outcome"]

    def outcome(self) -> str:
        if why := first_reason(self.stage.before):
            return self.not_run(why)
        for command in self.stage.preparations:
            outcome, why = self.run_one(command)
            if outcome != PASSED:
                self.of["why"] = [f"{why}: {command}"] if outcome == FAILED else []
                return outcome
        if why := first_reason(self.stage.needs):
            return self.not_run(why)
        for command in self.pending():
            outcome, why = self.run_one(command)
            if outcome == CUT_OFF:
                return CUT_OFF
            self.of["failed"].pop(str(command), None)
            if outcome == PASSED:
                self.of["passed"].append(str(command))
            else:
                self.of["failed"][str(command)] = why
            self.of["outcome"] = CUT_OFF  # unless the next lines are reached
            self.outcomes.keep()
        return FAILED if self.of["failed"] else PASSED

    def pending(self) -> list[Command]:
        """What no call has tried yet; when there is nothing of that, what has failed."""
        texts = {str(command) for command in self.stage.commands}
        self.of["passed"] = [text for text in self.of["passed"] if text in texts]
        self.of["failed"] = {text: why for text, why in self.of["failed"].items() if text in texts}
        left = [command for command in self.stage.commands if str(command) not in self.of["passed"]]
        return [command for command in left if str(command) not in self.of["failed"]] or left

    def not_run(self, why: str) -> str:
        print(f"  not run: {why}", flush=True)
        self.of["why"] = [why]
        return NOT_RUN

    def run_one(self, command: Command) -> tuple[str, str]:
        left = self.end - time.monotonic()
        if left < min(LEAST, command.limit):
            print(f"  not begun, the time is over: {command}", flush=True)
            return CUT_OFF, "the time is over"
        since, used = time.monotonic(), processor_seconds()
        outcome, why = run_command(command, self.log, left)
        seconds = time.monotonic() - since
        self.of["seconds"] += seconds
        self.of["processor_seconds"] += processor_seconds() - used
        print(f"  {'done' if outcome == PASSED else outcome} after {seconds:.0f} s: {command}", flush=True)
        if outcome == FAILED:
            print("\n".join(f"    | {line}" for line in last_lines(self.log, 15)) + f"\n    {why}; all of it is in {self.log}",
                  flush=True)
        return outcome, why
