"""One rank goes wrong; the others say what they were told, as one line of JSON.

  failing.py MODE          with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as torchrun sets them

The last rank is the one that goes wrong.
"""
import json
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from support.groups import register_backend
from support.launch import BACKEND

SHORT = timedelta(seconds=3)
LONG = timedelta(seconds=60)


def wait_for_the_end() -> None:
    """Until the parent ends this process."""
    signal.pause()


def killed(rank: int, last: bool) -> None:
    x = torch.ones(1000)
    dist.all_reduce(x)
    if last:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        dist.all_reduce(x)


def killed_under_way(rank: int, last: bool) -> None:
    """The others wait in a future."""
    dist.barrier()
    if last:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    assert work is not None
    work.get_future().wait()


def killed_while_receiving(rank: int, last: bool) -> None:
    dist.barrier()
    if last:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(torch.ones(4), dist.get_world_size() - 1)


def raised(rank: int, last: bool) -> None:
    """A rank that ends with an exception of its own takes part no longer."""
    dist.barrier()
    if last:
        raise ValueError("the user's own mistake")
    while True:
        dist.all_reduce(torch.ones(10))


def wrong_call(rank: int, last: bool) -> None:
    x = torch.ones(8)
    dist.all_reduce(x)
    if last:
        dist.all_gather_into_tensor(torch.empty(8 * dist.get_world_size()), x)
    else:
        dist.all_reduce(x)


def wrong_count(rank: int, last: bool) -> None:
    dist.all_reduce(torch.ones(9 if last else 8))


def wrong_type(rank: int, last: bool) -> None:
    dist.all_reduce(torch.ones(8, dtype=torch.float64 if last else torch.float32))


def wrong_operation(rank: int, last: bool) -> None:
    dist.all_reduce(torch.ones(8), op=dist.ReduceOp.MAX if last else dist.ReduceOp.SUM)


def wrong_root(rank: int, last: bool) -> None:
    dist.broadcast(torch.ones(8), src=1 if last else 0)
    dist.barrier()  # a root may have left before the others come: it is told in its next call


def absent(rank: int, last: bool) -> None:
    if last:
        wait_for_the_end()
    dist.all_reduce(torch.ones(8))


def absent_from_wait(rank: int, last: bool) -> None:
    if last:
        wait_for_the_end()
    work = dist.all_reduce(torch.ones(8), async_op=True)
    assert work is not None
    work.wait()


def absent_from_monitored_barrier(rank: int, last: bool) -> None:
    if last:
        wait_for_the_end()
    dist.group.WORLD.monitored_barrier(SHORT, wait_all_ranks=True)  # type: ignore[union-attr]


def monitored_and_gone(rank: int, last: bool) -> None:
    """All come; rank 0, which has the store, then ends at once."""
    dist.group.WORLD.monitored_barrier(SHORT)  # type: ignore[union-attr]


def interrupted(rank: int, last: bool) -> None:
    """All but the last wait without end, until Ctrl-C."""
    if last:
        wait_for_the_end()
    print("waiting", flush=True)
    dist.all_reduce(torch.ones(8))


def interrupted_in_wait(rank: int, last: bool) -> None:
    if last:
        wait_for_the_end()
    work = dist.all_reduce(torch.ones(8), async_op=True)
    assert work is not None
    print("waiting", flush=True)
    work.wait()


def interrupted_receiving(rank: int, last: bool) -> None:
    if last:
        wait_for_the_end()
    print("waiting", flush=True)
    dist.recv(torch.ones(8), dist.get_world_size() - 1)


def interrupted_in_destroy(rank: int, last: bool) -> None:
    """While the group's end waits for what is under way."""
    if last:
        wait_for_the_end()
    dist.all_reduce(torch.ones(8), async_op=True)
    print("waiting", flush=True)
    dist.destroy_process_group()


def raised_under_way(rank: int, last: bool) -> None:
    """A rank that ends with an exception while one of its calls waits for a rank that never comes."""
    if last:
        wait_for_the_end()
    dist.all_reduce(torch.ones(8), async_op=True)
    if rank == 0:
        raise ValueError("the user's own mistake")
    dist.all_reduce(torch.ones(8))


def aborted(rank: int, last: bool) -> None:
    import tutti_torch
    dist.barrier()
    if last:
        tutti_torch.abort(reason="the user's reason")
    dist.all_reduce(torch.ones(8))


MODES = {function.__name__: function for function in (
    killed, killed_under_way, killed_while_receiving, raised, wrong_call, wrong_count, wrong_type, wrong_operation,
    monitored_and_gone,
    wrong_root, absent, absent_from_wait, absent_from_monitored_barrier, interrupted, interrupted_in_wait,
    interrupted_receiving, interrupted_in_destroy, raised_under_way, aborted)}


def say(line: dict[str, object]) -> None:
    """In one write: print makes two, and other threads write of the failure at the same time."""
    os.write(1, f"{json.dumps(line)}\n".encode())


def main() -> None:
    mode = sys.argv[1]
    torch.set_num_threads(1)
    register_backend()
    dist.init_process_group(BACKEND, timeout=SHORT if mode.startswith("absent") else LONG)
    rank = dist.get_rank()
    begin = time.monotonic()
    try:
        dist.barrier()  # all have the group before anything goes wrong: who is still making it is told there
        MODES[mode](rank, rank == dist.get_world_size() - 1)
        say({"rank": rank, "error": None})
    except BaseException as error:
        say({"rank": rank, "error": type(error).__name__, "text": str(error), "kinds": [
            kind.__name__ for kind in type(error).__mro__], "seconds": time.monotonic() - begin})
        raise
    finally:
        if mode != "raised":
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
