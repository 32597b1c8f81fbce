#!/usr/bin/env python3
"""Runs a long command. Its output goes to a file; the screen has one line that moves, or on a pipe one every ten seconds.

  progress.py LOG WHAT COMMAND...

What has been done is read from the lines of ninja ("[12/80") and ctest ("12/80 Test"). When the command fails, its own
output about that is shown. The exit status is the command's.
"""
import os
import pathlib
import re
import selectors
import signal
import subprocess
import sys
import time

COUNT = re.compile(r"^\s*\[?(\d+)/(\d+)[] ,]")
FAILED_TEST = re.compile(r"^\s*\d+/\d+ Test\s.*\*\*\*")
PIPE_SECONDS = 10
LAST_LINES = 40


def failed_part(lines):
    """Of ninja the commands that failed, of ctest the tests that did, of another command its last lines."""
    part, inside = [], False
    for line in lines:
        if line.startswith("FAILED: ") or FAILED_TEST.match(line) or line.startswith("The following tests FAILED"):
            inside = True
        elif COUNT.match(line) or line.startswith("ninja: ") or re.match(r"\s+Start\s+\d+:", line):
            inside = False
        if inside:
            part.append(line)
    return part or lines[-LAST_LINES:]


class Line:
    """The one line: what is done, how far, and the minutes left, once enough has been done to tell."""

    def __init__(self, what):
        self.what, self.done, self.all = what, 0, 0
        self.begin = self.shown = time.monotonic()
        self.moves = sys.stdout.isatty()

    def text(self):
        seconds = time.monotonic() - self.begin
        if not self.all:
            return f"{self.what}: {seconds:.0f} s"
        left = ""
        if seconds > 5 and (self.done >= 20 or self.done * 3 > self.all):
            minutes = seconds / self.done * (self.all - self.done) / 60
            left = f", {minutes:.0f} min left" if minutes >= 1 else ", less than a minute left"
        return f"{self.what}: {self.done}/{self.all}{left}"

    def show(self):
        if self.moves:
            print(f"\r\033[K{self.text()[:os.get_terminal_size().columns - 1]}", end="", flush=True)
        elif time.monotonic() - self.shown >= PIPE_SECONDS:
            self.shown = time.monotonic()
            print(self.text(), flush=True)

    def end(self, status):
        seconds = round(time.monotonic() - self.begin)
        word = "done" if status == 0 else "FAILED"
        print(f"{chr(13) + chr(27) + '[K' if self.moves else ''}{self.what}: {word} in {seconds // 60}:{seconds % 60:02}",
              flush=True)


def run(log, what, command):
    line, lines = Line(what), []
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.killpg(process.pid, number))
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    rest = b""
    while True:
        data = None
        if selector.select(timeout=1):
            data = os.read(process.stdout.fileno(), 1 << 16)
            log.write(data)
            log.flush()
            *whole, rest = (rest + data).split(b"\n")
            for one in whole:
                lines.append(one.decode(errors="replace"))
                if count := COUNT.match(lines[-1]):
                    line.done, line.all = int(count[1]), int(count[2])
        line.show()
        if data == b"" or (data is None and process.poll() is not None):  # what it left behind may hold the pipe
            break
    lines.append(rest.decode(errors="replace"))
    status = process.wait()
    line.end(status)
    if status != 0:
        print("\n".join(failed_part(lines)), file=sys.stderr, flush=True)
    return status if status >= 0 else 128 - status


def main():
    log, what, *command = sys.argv[1:]
    try:
        pathlib.Path(log).parent.mkdir(parents=True, exist_ok=True)
        file = open(log, "wb")
    except OSError as error:
        sys.exit(f"{log}: {error.strerror}")
    with file:
        sys.exit(run(file, what, command))


if __name__ == "__main__":
    main()
