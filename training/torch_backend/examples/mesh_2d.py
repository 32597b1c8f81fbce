"""A mesh of two dimensions: the model is tensor parallel along one and sharded along the other.

  torchrun --nproc-per-node 4 mesh_2d.py
"""
import torch
import torch.distributed as dist
import tutti_torch  # noqa: F401
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, STEPS = 32, 20


def main() -> None:
    dist.init_process_group("tutti")
    size = dist.get_world_size()
    if size % 2:
        raise SystemExit(f"mesh_2d: {size} ranks; an even number is needed")
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + mesh.get_local_rank("data"))  # ranks that share their rows draw the same ones
    for step in range(STEPS):
        x = torch.randn(16, WIDTH)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.roll(1, -1))
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=mesh.get_group("data"))
        if dist.get_rank() == 0 and step % 5 == 4:
            print(f"step {step}: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
