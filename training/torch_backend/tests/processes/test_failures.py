"""A rank that dies, errs or never comes: the others get an exception with one sentence, in time, and end."""
import json
import re
import signal

import pytest

from support.launch import BACKEND, PROGRAMS, Ended, Ranks, run, torchrun

DEADLINE = 60  # for a whole job; what a rank may take is said in each test
SECONDS_TO_TELL = 10  # on two busy cores; on idle ones it takes a fraction of a second
TIMEOUT_S = 3  # what the "absent" programs give their group


def told(ended: Ended) -> dict[str, object]:
    """The line of JSON of a rank."""
    assert ended.status is not None, f"the rank hung: {ended.output}"
    lines = [line for line in ended.output.splitlines() if line.startswith("{")]
    assert lines, f"the rank said nothing, status {ended.status}: {ended.output}"
    return json.loads(lines[-1])


def check(ended: Ended, *words: str) -> dict[str, object]:
    """The rank was told in a DistBackendError that has all these words, and ended with a failure."""
    line = told(ended)
    assert line["error"] == "DistBackendError" and "RuntimeError" in line["kinds"], line
    assert ended.status == 1, f"{ended.status}: {ended.output}"
    assert "Fatal Python error" not in ended.output and "terminate called" not in ended.output, ended.output
    for word in words:
        assert re.search(word, str(line["text"])), f"{word!r} is not in {line['text']!r}"
    return line


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("mode", ["killed", "killed_under_way", "killed_while_receiving"])
def test_a_rank_is_killed(mode: str, ranks: int) -> None:
    with Ranks("failing.py", ranks, mode) as started:
        ended = started.wait(DEADLINE)
    assert ended[-1].status == -signal.SIGKILL
    for rank in range(ranks - 1):
        line = check(ended[rank], rf"rank {ranks - 1}\b")
        assert line["seconds"] < SECONDS_TO_TELL


def test_a_rank_raises() -> None:
    with Ranks("failing.py", 3, "raised") as started:
        ended = started.wait(DEADLINE)
    assert told(ended[2])["error"] == "ValueError" and ended[2].status == 1
    for rank in range(2):
        assert check(ended[rank], r"rank 2\b")["seconds"] < SECONDS_TO_TELL


@pytest.mark.parametrize("mode, words", [
    ("wrong_call", ["all_reduce", "all_gather"]), ("wrong_count", ["8", "9"]), ("wrong_type", ["f32", "f64"]),
    ("wrong_operation", ["sum", "max"]), ("wrong_root", ["broadcast", "root"])])
def test_a_rank_calls_another(mode: str, words: list[str]) -> None:
    """Every rank is told who called what."""
    with Ranks("failing.py", 3, mode) as started:
        ended = started.wait(DEADLINE)
    for rank in range(3):
        line = check(ended[rank], *words, r"rank 2\b")
        assert line["seconds"] < SECONDS_TO_TELL


@pytest.mark.parametrize("mode", ["absent", "absent_from_wait", "absent_from_monitored_barrier"])
def test_a_rank_never_calls(mode: str) -> None:
    with Ranks("failing.py", 3, mode) as started:
        started[0].wait(DEADLINE), started[1].wait(DEADLINE)
        started[2].kill()
        ended = started.wait(DEADLINE)
    for rank in range(2):
        if mode == "absent_from_monitored_barrier":
            line = told(ended[rank])
            assert "RuntimeError" in line["kinds"], line
            assert "rank(s) 2 did not come" in str(line["text"]), line  # P3: also where rank 0, which has the store, ends
        else:
            line = check(ended[rank], r"rank 2\b")
        assert line["seconds"] < TIMEOUT_S + SECONDS_TO_TELL
        # The first may be told by another before its own deadline, but none before any deadline was reached.
        assert line["seconds"] > TIMEOUT_S * 0.9 - 1


def test_a_rank_that_leaves_a_monitored_barrier_leaves_no_rank_in_it() -> None:
    """P3: the process that has the store may end behind it."""
    for _ in range(3):
        with Ranks("failing.py", 3, "monitored_and_gone") as started:
            ended = started.wait(DEADLINE)
        for rank in range(3):
            assert told(ended[rank])["error"] is None, ended[rank]


def test_a_rank_never_comes() -> None:
    """Two of three ranks are started."""
    with Ranks("absent_at_init.py", 2, WORLD_SIZE="3") as started:
        ended = started.wait(DEADLINE)
    for rank in range(2):
        assert "told after" in ended[rank].output, ended[rank]


@pytest.mark.parametrize("mode", ["interrupted", "interrupted_in_wait", "interrupted_receiving",
                                  "interrupted_in_destroy"])
def test_interrupt(mode: str) -> None:
    """Ctrl-C ends a rank that waits, long before its deadline, and its group with it; its peers are told."""
    with Ranks("failing.py", 3, mode) as started:
        for rank in range(2):
            started.wait_for_line(rank, "waiting")
        started[0].send_signal(signal.SIGINT)
        started[0].wait(DEADLINE)
        started[2].kill()
        ended = started.wait(DEADLINE)
    line = told(ended[0])
    assert line["error"] == "KeyboardInterrupt" and line["seconds"] < SECONDS_TO_TELL, line
    assert ended[0].status in (-signal.SIGINT, 1, 130), ended[0]
    if mode == "interrupted_in_destroy":
        assert told(ended[1])["error"] is None, ended[1]  # it asked no other rank how its call had ended
    else:
        check(ended[1])  # of rank 0, or of rank 2 where the signal came just before rank 0's call


def test_a_rank_raises_with_calls_under_way() -> None:
    """What it has started ends a moment after it leaves, though a peer never comes: its own end does not wait."""
    with Ranks("failing.py", 3, "raised_under_way") as started:
        started[0].wait(DEADLINE), started[1].wait(DEADLINE)
        started[2].kill()
        ended = started.wait(DEADLINE)
    assert told(ended[0])["error"] == "ValueError" and ended[0].status == 1
    assert check(ended[1], r"rank 0\b.*exception")["seconds"] < SECONDS_TO_TELL


def test_abort() -> None:
    if BACKEND == "gloo":
        pytest.skip("Gloo has none")
    with Ranks("failing.py", 3, "aborted") as started:
        ended = started.wait(DEADLINE)
    for rank in range(3):
        assert check(ended[rank], "the user's reason")["seconds"] < SECONDS_TO_TELL


@pytest.mark.parametrize("how", ["killed", "killed_before"])
def test_torchrun_starts_again(how: str) -> None:
    """P8: also where one rank has not lived to make its group, and the others wait for it."""
    ended = run(torchrun(3, str(PROGRAMS / "elastic.py"), how, options=("--max-restarts", "1")), DEADLINE)
    assert ended.status == 0, ended.output
    for rank in range(3):
        assert f"rank {rank}: attempt 1, 3 ranks" in ended.output, ended.output
