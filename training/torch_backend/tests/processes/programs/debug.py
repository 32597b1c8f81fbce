"""TORCH_DISTRIBUTED_DEBUG=DETAIL: PyTorch's checker around the backend lets right calls through and tells wrong ones.

  debug.py       under torchrun
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.groups import register_backend
from support.launch import BACKEND


def right(rank: int, size: int) -> None:
    x = torch.ones(4)
    dist.all_reduce(x)
    outputs = [torch.empty(4) for _ in range(size)]
    dist.all_gather(outputs, x)
    dist.broadcast(x, 0)
    dist.barrier()
    if rank < 2:  # messages, which the others know nothing of
        dist.batch_isend_irecv([dist.P2POp(dist.isend if rank == 0 else dist.irecv, torch.ones(3), 1 - rank)])[0].wait()
    dist.all_reduce(x, group=dist.new_group(list(range(size))))
    model = DistributedDataParallel(nn.Linear(4, 4))
    model(x).sum().backward()
    dist.all_reduce(x)
    assert x.eq(size ** 3).all()
    print(f"rank {rank}: good", flush=True)


def wrong(rank: int) -> None:
    try:
        dist.all_reduce(torch.ones(3 + rank))
    except RuntimeError as error:
        print(f"rank {rank} was told: {error}", flush=True)


def main() -> None:
    register_backend()
    dist.init_process_group(BACKEND)
    right(dist.get_rank(), dist.get_world_size())
    wrong(dist.get_rank())
    dist.destroy_process_group()


main()
