"""Ranks started by torch.multiprocessing, and processes forked off a rank.

  start_methods.py spawn|fork|forkserver     two ranks
  start_methods.py loader                    in each rank: a DataLoader whose workers are forks of the rank
  start_methods.py child                     in each rank: a fork of the rank that tries to use its group
"""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.data import DataLoader, TensorDataset

from support.groups import register_backend
from support.launch import BACKEND

RANKS = 2


def rank_main(rank: int, place: str) -> None:
    torch.set_num_threads(1)
    register_backend()
    dist.init_process_group(BACKEND, init_method=f"file://{place}/meet", rank=rank, world_size=RANKS)
    x = torch.full((5000,), rank + 1.0)
    dist.all_reduce(x)
    assert x.eq(3).all()
    print(f"rank {rank}: good", flush=True)
    dist.destroy_process_group()


def loader() -> None:
    dist.init_process_group(BACKEND)
    data = DataLoader(TensorDataset(torch.arange(32.0)), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for x, in data:
            total = x.sum()
            dist.all_reduce(total)
            assert total == x.sum() * dist.get_world_size()
    print(f"rank {dist.get_rank()}: good", flush=True)
    dist.destroy_process_group()


def end_in_a_fork() -> None:
    """A fork that is made while a call is under way ends as any process does, and neither waits for it nor ends it."""
    x = torch.ones(3)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        process = os.fork()
        if process == 0:
            sys.exit(7)
        _, status = os.waitpid(process, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert not work.is_completed()
        store.set("forked", "")
        work.wait()
    else:
        store.wait(["forked"])
        dist.all_reduce(x)
    assert x.eq(dist.get_world_size()).all()


def child() -> None:
    dist.init_process_group(BACKEND)
    end_in_a_fork()
    x = torch.ones(3)
    dist.all_reduce(x)
    process = os.fork()
    if process == 0:
        try:
            dist.all_reduce(x)
        except RuntimeError as error:
            print(f"the child was told: {error}", flush=True)
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    dist.all_reduce(x)
    assert x.eq(dist.get_world_size() ** 2).all()
    print(f"rank {dist.get_rank()}: good", flush=True)
    dist.destroy_process_group()


def main() -> None:
    method = sys.argv[1]
    if method in ("loader", "child"):
        register_backend()
        {"loader": loader, "child": child}[method]()
        return
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.start_processes(rank_main, (place,), nprocs=RANKS, start_method=method)


if __name__ == "__main__":
    main()
