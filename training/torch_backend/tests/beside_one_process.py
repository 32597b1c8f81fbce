#!/usr/bin/env python3
"""Trains a small model in N ranks by PyTorch's own DDP or FSDP2, then in one process, and compares the losses.

  python beside_one_process.py --backend tutti --ranks 2 --parallel ddp
  LD_PRELOAD=libtutti_nccl.so python beside_one_process.py --backend nccl --device cuda --ranks 4 --parallel fsdp2

Ranks are processes of this machine; with --device cuda they get its GPUs in turn, so that with one GPU all share it. The
process alone takes all ranks' rows, a rank's at a time, and adds up the gradients: what it computes differs from what they
compute in the order of additions at most. All is in f64, and losses are compared up to what that order can change.
Exit status: 0 when they agree, 1 when not or at an error, 2 wrong usage.
"""
import argparse
import json
import pathlib
import sys
import tempfile
from datetime import timedelta

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402
from torch import nn  # noqa: E402

from support.models import STEPS, Stack, made, token_loss  # noqa: E402

TIMEOUT = timedelta(seconds=60)
# A gradient is a mean over n ranks, which two orders of addition give to n - 1 epsilons of f64 (7e-16 for 4 ranks); five
# steps of this small model enlarge a relative error by far less than 1e4. What a wrong sum changes is in the first digits.
TOLERANCE = 1e-11


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["tutti", "gloo", "nccl"], default="tutti")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args(words)
    if arguments.ranks < 1:
        parser.error(f"--ranks is {arguments.ranks}; expected 1 or more")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this PyTorch finds no GPU")
    return arguments


def device_of(arguments: argparse.Namespace, rank: int) -> torch.device:
    if arguments.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def model_on(device: torch.device) -> nn.Module:
    return made(lambda: Stack(dtype=torch.float64)).to(device)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def wrapped(model: nn.Module, parallel: str, device: torch.device) -> nn.Module:
    if parallel == "ddp":
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)  # several buckets for a small model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def run_rank(rank: int, arguments: argparse.Namespace, folder: str) -> None:
    """Leaves this rank's losses in `folder`."""
    torch.set_num_threads(1)
    device = device_of(arguments, rank)
    if arguments.backend == "tutti":
        import tutti_torch  # noqa: F401
    dist.init_process_group(arguments.backend, init_method=f"file://{folder}/meet", rank=rank, world_size=arguments.ranks,
                            timeout=TIMEOUT)
    model = wrapped(model_on(device), arguments.parallel, device)
    optimizer, losses = optimizer_of(model), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = token_loss(model, rank, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


def train_alone(arguments: argparse.Namespace) -> list[list[float]]:
    """Each rank's losses, in one process."""
    device = device_of(arguments, 0)
    model = model_on(device)
    optimizer = optimizer_of(model)
    losses: list[list[float]] = [[] for _ in range(arguments.ranks)]
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(arguments.ranks):
            loss = token_loss(model, rank, step)
            (loss / arguments.ranks).backward()
            losses[rank].append(loss.item())
        optimizer.step()
    return losses


def main() -> int:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="tutti_beside_") as folder:
        torch.multiprocessing.spawn(run_rank, (arguments, folder), arguments.ranks)
        together = [json.loads(pathlib.Path(folder, f"{rank}.json").read_text()) for rank in range(arguments.ranks)]
    alone = train_alone(arguments)
    pairs = [pair for mine, other in zip(together, alone, strict=True) for pair in zip(mine, other, strict=True)]
    worst = max(abs(mine - other) / abs(other) for mine, other in pairs)
    good = worst <= TOLERANCE
    print(f"beside_one_process: {arguments.parallel} over {arguments.backend}, {arguments.ranks} ranks on {arguments.device}: "
          f"{len(pairs)} losses, {sum(mine == other for mine, other in pairs)} equal to the bit, largest relative difference "
          f"{worst:.1e} ({'good' if good else 'WRONG'}: at most {TOLERANCE:.0e})")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
