#!/usr/bin/env python3
"""The training of build/bin/train_gpt by PyTorch itself: DistributedDataParallel or FSDP2 (fully_shard), over Gloo, or over
Tutti with --backend tutti.

  perf/compare/torch_reference.py --ranks 2 --parallel ddp --steps 40 --json steps.jsonl
  torchrun --nproc-per-node 2 perf/compare/torch_reference.py --parallel fsdp2

Same model, same first parameters (the same draws from the same seed), same rows of the same text, same optimiser, same
clipping and learning rates: the losses are those of train_gpt, up to rounding. What the two do differently is PyTorch's
own: its hooks, its buckets, its Gloo.

Output, as JSON lines (to --json, or standard output): one {"step", "loss", "step_ms"} for each step of rank 0, one
{"local_step", "step_ms"} for each step of the same model without any communication (every rank for itself, at the same
time, so that the cores are as busy), and one {"summary": ...} with medians and bytes.
  communication_share: 1 - local / step, of medians. What a step takes beyond its computation, so what backward hides is
    not in it; copies, Python's hooks and waiting are. With fsdp2 the local step updates the whole model, not a shard: the
    share is a lower bound.
  sent_bytes: what each rank must send in a step, by formula: 2 (n-1)/n P for ddp; for fsdp2 (n-1)/n P three times, less
    the root's part once, which is kept after forward.

Needs: torch with Gloo; tutti_torch for Tutti. Exit status: 0 good, 1 an error, 2 wrong usage.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import sys
import tempfile
import time

WARM_UP_STEPS = 5
MASK = (1 << 64) - 1


def parse_arguments(words=None):
    """The names and defaults are train_gpt's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--backend", choices=["gloo", "tutti", "none"], default="gloo",
                        help="none: DDP with a hook that sends nothing, so what DDP itself takes")
    parser.add_argument("--ranks", type=int, default=1, help="local processes (not needed under torchrun)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--local-steps", type=int, default=0, help="steps without communication afterwards")
    parser.add_argument("--batch", type=int, default=12, help="rows per rank")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0, help="of torch, per rank; 0: cores / ranks")
    parser.add_argument("--fused", action="store_true", help="AdamW in one kernel; torch::optim has none in C++")
    parser.add_argument("--json", help="write the lines to this file")
    arguments = parser.parse_args(words)
    if arguments.backend == "none" and arguments.parallel != "ddp":
        parser.error("--backend none is for --parallel ddp")
    for name in ("ranks", "steps", "batch", "layers", "heads", "width", "context"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if arguments.width % arguments.heads:
        parser.error(f"--width {arguments.width} is not a multiple of --heads {arguments.heads}")
    return arguments


def mix64(z):
    """The output function of SplitMix64, as training/data/random.h has it."""
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def row_offset(seed, step, row, length, context):
    """Where a row of a step begins in the text (training/data/text.h)."""
    return mix64(mix64(mix64(seed) ^ step) ^ row) % (length - context)


def training_text(folder="/usr/share/common-licenses"):
    files = sorted(path for path in pathlib.Path(folder).iterdir() if path.is_file() and not path.is_symlink())
    data = b"".join(path.read_bytes() for path in files)
    return data[:len(data) - int(len(data) * 0.1)]  # the rest is train_gpt's validation text


def learning_rate_at(arguments, step):
    warm_up = min(100, arguments.steps // 10)
    if step < warm_up:
        return arguments.lr * (step + 1) / (warm_up + 1)
    done = (step - warm_up) / max(1, arguments.steps - warm_up)
    return arguments.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


def make_model(arguments):
    """Gpt of training/models/gpt.cc, with its draws in its order."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    width, heads, layers = arguments.width, arguments.heads, arguments.layers

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_attention = nn.LayerNorm(width)
            self.query_key_value = nn.Linear(width, 3 * width)
            self.attention_out = nn.Linear(width, width)
            self.norm_mlp = nn.LayerNorm(width)
            self.mlp_in = nn.Linear(width, 4 * width)
            self.mlp_out = nn.Linear(4 * width, width)
            with torch.no_grad():
                for layer in (self.query_key_value, self.attention_out, self.mlp_in, self.mlp_out):
                    adds = layer is self.attention_out or layer is self.mlp_out
                    layer.weight.normal_(0, 0.02 / math.sqrt(2.0 * layers) if adds else 0.02)
                    layer.bias.zero_()

        def forward(self, x):
            rows, steps, _ = x.shape
            parts = self.query_key_value(self.norm_attention(x)).split(width, 2)
            q, k, v = (part.view(rows, steps, heads, width // heads).transpose(1, 2) for part in parts)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attention_out(y.transpose(1, 2).contiguous().view(rows, steps, width))
            return x + self.mlp_out(F.gelu(self.mlp_in(self.norm_mlp(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Embedding(256, width)
            self.position = nn.Embedding(arguments.context, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(width)
            with torch.no_grad():
                self.token.weight.normal_(0, 0.02)
                self.position.weight.normal_(0, 0.02)

        def forward(self, tokens):
            x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = block(x)
            return F.linear(self.norm(x), self.token.weight)

    torch.manual_seed(arguments.seed)
    return Gpt()


class Training:
    """A model, plain or wrapped, with its optimiser and its rows."""

    def __init__(self, arguments, rank, ranks, wrap):
        import torch
        self.torch, self.arguments, self.rank, self.ranks = torch, arguments, rank, ranks
        self.model = make_model(arguments)
        self.sizes = [(name, 4 * parameter.numel()) for name, parameter in self.model.named_parameters()]
        self.model = wrap(self.model)
        parameters = list(self.model.parameters())
        groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
                  {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=arguments.lr, betas=(0.9, 0.99), fused=arguments.fused or None)
        self.text = torch.frombuffer(bytearray(training_text()), dtype=torch.uint8)

    def batch(self, step):
        torch, arguments = self.torch, self.arguments
        rows = range(self.rank * arguments.batch, (self.rank + 1) * arguments.batch)
        offsets = [row_offset(arguments.seed, step, row, len(self.text), arguments.context) for row in rows]
        both = torch.stack([self.text[at:at + arguments.context + 1] for at in offsets]).to(torch.int64)
        return both[:, :-1], both[:, 1:]

    def step(self, step):
        """One step of the optimiser. Returns the loss of this rank's rows."""
        from torch.nn import functional as F
        self.optimizer.zero_grad()
        tokens, targets = self.batch(step)
        loss = F.cross_entropy(self.model(tokens).view(-1, 256), targets.reshape(-1))
        loss.backward()
        loss = loss.item()
        if self.arguments.clip > 0:
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.arguments.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.arguments, step)
        self.optimizer.step()
        return loss


def sent_bytes(parallel, sizes, ranks):
    """Per rank and step; see the head of this file."""
    whole = sum(size for _, size in sizes)
    root = sum(size for name, size in sizes if not name.startswith("blocks."))
    share = (ranks - 1) / ranks
    return round(share * (2 * whole if parallel == "ddp" else 3 * whole - root))


def send_nothing(state, bucket):
    import torch
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def run_rank(rank, arguments, ranks, meeting_place):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(arguments.threads or max(1, (os.cpu_count() or 1) // ranks))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the ranks are all here; a host's own name may not resolve
    if arguments.backend == "tutti":
        import tutti_torch  # noqa: F401
    backend = "gloo" if arguments.backend == "none" else arguments.backend
    dist.init_process_group(backend, init_method=meeting_place, rank=rank, world_size=ranks)

    def wrap(model):
        if arguments.parallel == "ddp":
            replica = torch.nn.parallel.DistributedDataParallel(model)
            if arguments.backend == "none":
                replica.register_comm_hook(None, send_nothing)
            return replica
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def timed(training, steps):
        dist.barrier()
        times, losses = [], []
        for step in range(steps):
            begin = time.perf_counter()
            losses.append(training.step(step))
            times.append(1e3 * (time.perf_counter() - begin))
        return times, losses

    training = Training(arguments, rank, ranks, wrap)
    times, losses = timed(training, arguments.steps)
    mean_losses = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(mean_losses)
    mean_losses /= ranks
    sizes = training.sizes
    del training
    local_times = []
    if arguments.local_steps > 0:
        local_times, _ = timed(Training(arguments, rank, ranks, lambda model: model), arguments.local_steps)
    dist.barrier()
    if rank == 0:
        write(arguments, ranks, sizes, times, mean_losses.tolist(), local_times)
    dist.destroy_process_group()


def median_after_warm_up(times):
    return statistics.median(times[WARM_UP_STEPS:] or times) if times else None


def write(arguments, ranks, sizes, times, losses, local_times):
    import torch
    lines = [{"step": step, "loss": loss, "step_ms": ms} for step, (loss, ms) in enumerate(zip(losses, times))]
    lines += [{"local_step": step, "step_ms": ms} for step, ms in enumerate(local_times)]
    step, local = median_after_warm_up(times), median_after_warm_up(local_times)
    lines.append({"summary": {
        "parallel": arguments.parallel, "backend": arguments.backend, "torch": torch.__version__, "ranks": ranks,
        "threads": torch.get_num_threads(), "parameters": sum(size for _, size in sizes) // 4, "step_ms": step,
        "local_step_ms": local, "communication_share": max(0.0, 1 - local / step) if local else None,
        "sent_bytes": sent_bytes(arguments.parallel, sizes, ranks)}})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(text)
    else:
        sys.stdout.write(text)


def main():
    arguments = parse_arguments()
    try:
        import torch
        import torch.multiprocessing
    except ImportError:
        sys.exit(f"torch_reference: {sys.executable} has no torch; run it by .venv/bin/python")
    if "RANK" in os.environ:  # torchrun
        run_rank(int(os.environ["RANK"]), arguments, int(os.environ["WORLD_SIZE"]), "env://")
        return
    with tempfile.TemporaryDirectory(prefix="tutti_reference_") as folder:
        torch.multiprocessing.spawn(run_rank, (arguments, arguments.ranks, f"file://{folder}/meet"), arguments.ranks)


if __name__ == "__main__":
    main()
