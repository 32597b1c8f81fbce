"""Ranks started in the ways that PyTorch's users start them, processes forked off a rank, and PyTorch's debug mode."""
import sys

import pytest

from support.launch import BACKEND, PROGRAMS, TESTS, Ended, Ranks, run, torchrun

DEADLINE = 120


def expect(ended: Ended, *lines: str) -> None:
    assert ended.status == 0, f"{ended.status}: {ended.output}"
    for line in lines:
        assert line in ended.output, f"no {line!r} in: {ended.output}"


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing(method: str) -> None:
    expect(run([sys.executable, str(PROGRAMS / "start_methods.py"), method], DEADLINE), "rank 0: good", "rank 1: good")


def in_two_ranks(*words: str) -> str:
    """What both said; each must have ended well."""
    with Ranks("start_methods.py", 2, *words) as started:
        ended = started.wait(DEADLINE)
    for rank in range(2):
        expect(ended[rank], f"rank {rank}: good")
    return ended[0].output + ended[1].output


def test_loader_with_forked_workers() -> None:
    in_two_ranks("loader")


def test_a_fork_of_a_rank_is_told() -> None:
    """The rank itself goes on."""
    if BACKEND == "gloo":
        pytest.skip("Gloo hangs")
    output = in_two_ranks("child")
    assert "the child was told" in output and "fork" in output


def test_debug_detail() -> None:
    """What is right goes through; what is wrong is told by PyTorch."""
    ended = run(torchrun(3, str(PROGRAMS / "debug.py")), DEADLINE, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    expect(ended, *(f"rank {rank}: good" for rank in range(3)), *(f"rank {rank} was told" for rank in range(3)),
           "mismatch")


def test_debug_detail_over_the_suite() -> None:
    """The same tests with the checker around each group. Not DDP's: with several buckets torch 2.13's own debugging of
    DDP crashes, over Gloo, too."""
    files = [str(TESTS / "in_ranks" / f"test_{name}.py") for name in ("collectives", "objects")]
    ended = run([sys.executable, str(TESTS / "run_in_ranks.py"), "2", *files, "-k", "every_root or object"], DEADLINE,
                TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert ended.status == 0, ended.output
