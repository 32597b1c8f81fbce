"""TORCH_DISTRIBUTED_DEBUG=DETAIL: PyTorch's checker around the backend lets right calls through and tells wrong ones.

  debug.py right|wrong       under torchrun
"""
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.groups import register_backend
from support.launch import BACKEND


def main() -> None:
    register_backend()
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    if sys.argv[1] == "wrong":
        try:
            dist.all_reduce(torch.ones(3 + rank))
        except RuntimeError as error:
            print(f"rank {rank} was told: {error}", flush=True)
        dist.destroy_process_group()
        return
    x = torch.ones(4)
    dist.all_reduce(x)
    outputs = [torch.empty(4) for _ in range(size)]
    dist.all_gather(outputs, x)
    dist.broadcast(x, 0)
    dist.barrier()
    dist.all_reduce(x, group=dist.new_group(list(range(size))))
    model = DistributedDataParallel(nn.Linear(4, 4))
    model(x).sum().backward()
    assert x.eq(size ** 2).all()
    print(f"rank {rank}: good", flush=True)
    dist.destroy_process_group()


main()
