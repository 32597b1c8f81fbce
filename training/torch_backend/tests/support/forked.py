"""Starts ranks as forks of rank_server.py, which costs a fraction of a start of Python with torch."""
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading

SERVER = pathlib.Path(__file__).resolve().parent / "rank_server.py"
_server: socket.socket | None = None


class Rank:
    """What subprocess.Popen is for a process of one's own; methods of one name mean the same."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        global _server
        if _server is None:
            _server = start_server(environment)
        output, output_of_rank = os.pipe()
        self._status, status_of_rank = os.pipe()
        request = json.dumps({"command": command, "environment": environment}).encode()
        socket.send_fds(_server, [request], [output_of_rank, status_of_rank])
        os.close(output_of_rank), os.close(status_of_rank)
        pid = _server.recv(64)
        if not pid:
            raise RuntimeError(f"{SERVER} has ended: what it said is above")
        self.pid = int(pid)
        self.returncode: int | None = None
        self._more = threading.Condition()
        self._lines: list[str] = []  # guarded by _more
        self._ended = False  # there will be no more lines
        threading.Thread(target=self._read, args=(output,), daemon=True).start()

    def _read(self, output: int) -> None:
        with open(output, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with self._more:
                    self._lines.append(line)
                    self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def wait_for_line(self, text: str, timeout: float) -> bool:
        """Whether the rank said it before its output ended or the time was over."""
        def said() -> bool:
            return any(text in line for line in self._lines)

        with self._more:
            self._more.wait_for(lambda: said() or self._ended, timeout)
            return said()

    def output(self, timeout: float = 5) -> str:
        """All that the rank said, once it has ended; a process that it left behind may keep it from being complete."""
        with self._more:
            self._more.wait_for(lambda: self._ended, timeout)
            return "".join(self._lines)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(SERVER), timeout or 0)
            self.returncode = int(os.read(self._status, 64))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        try:
            self.wait(0)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_server(environment: dict[str, str]) -> socket.socket:
    """It ends when this process does."""
    ours, its = socket.socketpair()
    subprocess.Popen([sys.executable, str(SERVER), str(its.fileno())], env=environment, pass_fds=[its.fileno()])
    its.close()
    return ours
