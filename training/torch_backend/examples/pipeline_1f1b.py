"""A pipeline: each rank has a part of the layers, and micro-batches go through in the order 1F1B.

  torchrun --nproc-per-node 2 pipeline_1f1b.py
"""
import torch
import torch.distributed as dist
import tutti_torch  # noqa: F401
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WIDTH, MICRO_BATCHES, ROWS, STEPS = 16, 8, 4, 20


def main() -> None:
    dist.init_process_group("tutti")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(size - 1)]
    stage_module = [*layers, nn.Linear(WIDTH, 1)][rank]
    stage = PipelineStage(stage_module, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)

    optimizer = torch.optim.Adam(stage_module.parameters(), lr=1e-2)
    for step in range(STEPS):
        x = torch.randn(MICRO_BATCHES * ROWS, WIDTH)  # the same on all ranks, by the seed
        target = x.mean(1, keepdim=True)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        arguments = [x] if rank == 0 else []
        if rank == size - 1:
            schedule.step(*arguments, target=target, losses=losses)
        else:
            schedule.step(*arguments)
        optimizer.step()
        if losses and step % 5 == 4:
            print(f"step {step}: loss {torch.stack(losses).mean().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
