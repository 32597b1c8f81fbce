"""Tensor and sequence parallelism by DTensor: matrices are cut over the ranks, and between them the activations are.

  torchrun --nproc-per-node 2 tensor_parallel.py
"""
import torch
import torch.distributed as dist
import tutti_torch  # noqa: F401
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               parallelize_module)

WIDTH, STEPS = 32, 20


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main() -> None:
    dist.init_process_group("tutti")
    torch.manual_seed(0)  # one model and, since no dimension of the mesh is of data, one batch for all ranks
    model = nn.Sequential(Mlp(), Mlp())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    for block in model:
        parallelize_module(block, mesh, {
            "norm": SequenceParallel(),  # rows of the sequence are cut: no rank normalises all of them
            "up": ColwiseParallel(input_layouts=Shard(1)),  # an all_gather of the rows
            "down": RowwiseParallel(output_layouts=Shard(1)),  # a reduce_scatter
        })
    plan = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True)
    parallelize_module(model, mesh, plan)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(STEPS):
        x = torch.randn(4, 8 * size, WIDTH)
        target = x.flip(-1).chunk(size, dim=1)[rank]  # the rows of this rank
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target) / size
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0 and step % 5 == 4:
            print(f"step {step}: loss {total.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
