"""Starts programs in several ranks, by torchrun or one by one, each with a deadline. Needs no torch."""
import dataclasses
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

from support.forked import Rank

BACKEND = os.environ.get("TUTTI_TORCH_TEST_BACKEND", "tutti")
DEVICE = os.environ.get("TUTTI_TORCH_TEST_DEVICE", "cpu")
TESTS = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = TESTS / "processes" / "programs"
SECONDS_FOR_A_LINE = 60


def rank_environment(**more: str) -> dict[str, str]:
    """What a rank inherits: one thread each, since ranks outnumber cores, and Gloo on the loopback."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TUTTI_TORCH_TEST_BACKEND=BACKEND,
                       PYTHONPATH=os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
                       PYTHONUNBUFFERED="1", PYTHONFAULTHANDLER="1", PYTHONDONTWRITEBYTECODE="1",
                       PYTHONWARNINGS="ignore")
    environment.setdefault("TUTTI_TORCH_TEST_SEED", str(random.SystemRandom().randrange(1 << 31)))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):  # of a launcher around us
        environment.pop(name, None)
    environment.update(more)
    return environment


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def torchrun(ranks: int, *words: str, options: tuple[str, ...] = ()) -> list[str]:
    """The command that runs `words` in `ranks` ranks. Another port each time, so that runs do not meet."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1", *options, *words]


def end_session(process: "subprocess.Popen[str] | subprocess.Popen[bytes] | Rank") -> None:
    """Ends the process and all that it started (it has a session of its own)."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@dataclasses.dataclass
class Ended:
    """How a process ended. status is as subprocess has it: negative for a signal, None when it did not end in time."""
    status: int | None
    output: str
    seconds: float


def run(command: list[str], deadline: float, **environment: str) -> Ended:
    """Runs a command, its standard output and error together."""
    begin = time.monotonic()
    process = subprocess.Popen(command, env=rank_environment(**environment), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=deadline)
        return Ended(process.returncode, output, time.monotonic() - begin)
    except subprocess.TimeoutExpired:
        end_session(process)
        output, _ = process.communicate()
        return Ended(None, output, time.monotonic() - begin)
    finally:
        end_session(process)


class Ranks:
    """Ranks started one by one, as forks (rank_server.py), with no launcher that would end the others when one dies.

      with Ranks("killed.py", 3) as ranks:
          ranks[1].send_signal(signal.SIGKILL)
          ended = ranks.wait(deadline=20)
    """

    def __init__(self, program: str, ranks: int, *words: str, **environment: str) -> None:
        port = free_port()
        self.processes = []
        self.begin = time.monotonic()
        for rank in range(ranks):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                     "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            self.processes.append(Rank([str(PROGRAMS / program), *words], rank_environment(**{**place, **environment})))

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            end_session(process)

    def __getitem__(self, rank: int) -> Rank:
        return self.processes[rank]

    def wait_for_line(self, rank: int, text: str) -> None:
        """Fails when the rank's output ends without a line that holds the text."""
        said = self.processes[rank].wait_for_line(text, SECONDS_FOR_A_LINE)
        assert said, f"rank {rank} never said {text!r}; it said: {self.processes[rank].output(0)}"

    def wait(self, deadline: float) -> list[Ended]:
        """All ranks, until they have ended or `deadline` seconds from now have passed."""
        until = time.monotonic() + deadline
        ended = []
        for process in self.processes:
            try:
                status: int | None = process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                status = None
                end_session(process)
            ended.append(Ended(status, process.output(), time.monotonic() - self.begin))
        return ended
