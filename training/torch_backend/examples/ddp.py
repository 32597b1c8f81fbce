"""Data parallel training over Tutti. Beside a script that ran over Gloo, two lines are new: they are marked.

  torchrun --nproc-per-node 2 ddp.py
"""
import torch
import torch.distributed as dist
import tutti_torch  # noqa: F401                      (1) registers the backend
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 3


def main() -> None:
    dist.init_process_group("tutti")  #                (2) names it
    torch.manual_seed(0)  # the same rows on all ranks, of which the sampler gives each its part
    inputs = torch.randn(256, 8)
    targets = inputs @ torch.randn(8, 1)
    rows = TensorDataset(inputs, targets)
    sampler = DistributedSampler(rows)
    loader = DataLoader(rows, batch_size=16, sampler=sampler)

    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()  # gradients are averaged over the ranks here
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total.item() / len(loader):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
