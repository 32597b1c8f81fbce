"""A model sharded by fully_shard (FSDP2): held in f32, gathered and computed in bf16, gradients added in f32.

  torchrun --nproc-per-node 2 fsdp2.py
"""
import torch
import torch.distributed as dist
import tutti_torch  # noqa: F401
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

VOCABULARY, WIDTH, CONTEXT, STEPS = 64, 32, 16, 20


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x).float()  # the loss wants more digits than bf16 has


def main() -> None:
    dist.init_process_group("tutti")
    rank = dist.get_rank()
    torch.manual_seed(0)  # one model for all ranks
    model = Gpt()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    held = sum(p.to_local().numel() for p in model.parameters() if isinstance(p, DTensor))
    if rank == 0:
        print(f"rank 0 holds {held} of {sum(p.numel() for p in model.parameters())} parameters")

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)  # rows of its own for each rank
    for step in range(STEPS):
        first = torch.randint(VOCABULARY, (8, 1))
        row = (first + torch.arange(CONTEXT + 1)) % VOCABULARY  # to be learned: count on from any number
        optimizer.zero_grad()
        logits = model(row[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), row[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0 and step % 5 == 4:
            print(f"step {step}: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
