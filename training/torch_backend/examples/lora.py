"""A LoRA fine-tune under DDP: the layers of a finished model are frozen, and small matrices beside them are trained.

  torchrun --nproc-per-node 2 lora.py           # with peft, if it is installed
  torchrun --nproc-per-node 2 lora.py --plain   # with the few lines below in any case

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
"""
import argparse
import importlib.util

import torch
import torch.distributed as dist
import tutti_torch  # noqa: F401
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, RANK, ALPHA, STEPS = 32, 4, 8.0, 30


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(nn.functional.gelu(self.first(x)))


class LoraLinear(nn.Module):
    """y = W x + b + (alpha / rank) B A x, in which only A and B are trained; B begins at zero."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(RANK, frozen.in_features) / RANK)
        self.b = nn.Parameter(torch.zeros(frozen.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + ALPHA / RANK * (x @ self.a.T @ self.b.T)


def with_lora(model: Model, plain: bool) -> nn.Module:
    if not plain and importlib.util.find_spec("peft"):
        from peft import LoraConfig, get_peft_model
        return get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["first", "second"]))
    model.first, model.second = LoraLinear(model.first), LoraLinear(model.second)
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true")
    arguments = parser.parse_args()
    dist.init_process_group("tutti")
    rank = dist.get_rank()
    torch.manual_seed(0)
    finished = Model()
    turned = torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0]  # what the fine-tune is to learn
    model = DistributedDataParallel(with_lora(finished, arguments.plain))
    trained = [p for p in model.parameters() if p.requires_grad]
    if rank == 0:
        print(f"trained: {sum(p.numel() for p in trained)} of {sum(p.numel() for p in model.parameters())} parameters")

    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    torch.manual_seed(1 + rank)
    for step in range(STEPS):
        x = torch.randn(32, WIDTH)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x @ turned)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0 and step % 10 == 9:
            print(f"step {step}: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
