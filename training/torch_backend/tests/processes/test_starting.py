"""Ranks started in the ways that PyTorch's users start them, processes forked off a rank, and PyTorch's debug mode."""
import sys

import pytest

from support.launch import BACKEND, PROGRAMS, TESTS, run, torchrun

DEADLINE = 120


def expect(ended: object, *lines: str) -> None:
    assert ended.status == 0, f"{ended.status}: {ended.output}"  # type: ignore[attr-defined]
    for line in lines:
        assert line in ended.output, f"no {line!r} in: {ended.output}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing(method: str) -> None:
    expect(run([sys.executable, str(PROGRAMS / "start_methods.py"), method], DEADLINE), "rank 0: good", "rank 1: good")


def test_loader_with_forked_workers() -> None:
    expect(run(torchrun(2, str(PROGRAMS / "start_methods.py"), "loader"), DEADLINE), "rank 0: good", "rank 1: good")


def test_a_fork_of_a_rank_is_told() -> None:
    """The rank itself goes on."""
    if BACKEND == "gloo":
        pytest.skip("Gloo hangs")
    ended = run(torchrun(2, str(PROGRAMS / "start_methods.py"), "child"), DEADLINE)
    expect(ended, "rank 0: good", "rank 1: good", "the child was told")
    assert "fork" in ended.output


def test_debug_detail() -> None:
    ended = run(torchrun(3, str(PROGRAMS / "debug.py"), "right"), DEADLINE, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    expect(ended, *(f"rank {rank}: good" for rank in range(3)))


def test_debug_detail_tells() -> None:
    ended = run(torchrun(2, str(PROGRAMS / "debug.py"), "wrong"), DEADLINE, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    expect(ended, "rank 0 was told", "rank 1 was told", "mismatch")


def test_debug_detail_over_the_suite() -> None:
    """The same tests with the checker around each group. Not DDP's: with several buckets torch 2.13's own debugging of
    DDP crashes, over Gloo, too."""
    files = [str(TESTS / "in_ranks" / f"test_{name}.py") for name in ("collectives", "objects")]
    ended = run([sys.executable, str(TESTS / "run_in_ranks.py"), "2", *files, "-k", "every_root or object"], DEADLINE,
                TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert ended.status == 0, ended.output
