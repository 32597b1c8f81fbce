"""Every collective as one function of a Case: it makes the call, and returns what came and what should have come.

A case fixes group, type, shape, operation, root, layout and whether the call is asynchronous; a rank's inputs follow
from it by the seed, so every rank knows all inputs.
"""
import dataclasses
import random
from collections.abc import Callable

import torch
import torch.distributed as dist

from support import torch_versions
from support.launch import DEVICE
from support.values import Op, Shape, elements, lay, make, reduced

Tensors = list[torch.Tensor]
Outcome = tuple[Tensors, Tensors]  # got, expected


@dataclasses.dataclass
class Case:
    group: dist.ProcessGroup
    rank: int  # in the group, as root is
    size: int
    dtype: torch.dtype = torch.float32
    shape: Shape = (7,)
    op: Op = Op.SUM
    root: int = 0
    layout: str = "contiguous"
    async_op: bool = False
    seed: object = 0
    pending: list[dist.Work] | None = None  # where asynchronous calls leave their work, if the test waits for it later

    def inputs(self, salt: object = "", shape: Shape | None = None, op: Op | None = None) -> Tensors:
        """All ranks' inputs."""
        return [make((self.seed, salt), rank, self.shape if shape is None else shape, self.dtype, op)
                for rank in range(self.size)]

    def lay(self, x: torch.Tensor) -> torch.Tensor:
        return lay(x, self.layout)

    def space(self, shape: Shape | None = None) -> torch.Tensor:
        """An output, full of what must not stay there."""
        x = torch.empty(self.shape if shape is None else shape, dtype=self.dtype, device=DEVICE)
        if x.numel():
            x.view(-1).view(torch.uint8).fill_(1)
        return self.lay(x)

    def done(self, work: dist.Work | None) -> None:
        if self.async_op:
            assert work is not None
            if self.pending is not None:
                self.pending.append(work)
                return
            work.wait()
        else:
            assert work is None

    def __str__(self) -> str:
        return (f"rank {self.rank} of {self.size}, {self.dtype}, shape {self.shape}, {self.op}, root {self.root}, "
                f"{self.layout}, async_op={self.async_op}, seed {self.seed}")


def all_reduce(c: Case) -> Outcome:
    inputs = c.inputs(op=c.op)
    x = c.lay(inputs[c.rank])
    c.done(dist.all_reduce(x, c.op, group=c.group, async_op=c.async_op))
    return [x], [reduced(inputs, c.op)]


def all_reduce_coalesced(c: Case) -> Outcome:
    inputs = [c.inputs(salt, op=c.op) for salt in range(3)]
    mine = [c.lay(x[c.rank]) for x in inputs]
    future = dist.all_reduce_coalesced(mine, c.op, group=c.group, async_op=c.async_op)
    if c.async_op:  # a Future, not a Work
        future.wait()
    return mine, [reduced(x, c.op) for x in inputs]


def reduce(c: Case) -> Outcome:
    inputs = c.inputs(op=c.op)
    x = c.lay(inputs[c.rank])
    c.done(dist.reduce(x, group_dst=c.root, op=c.op, group=c.group, async_op=c.async_op))
    if c.rank != c.root:
        return [], []  # what the others hold afterwards is not defined
    return [x], [reduced(inputs, c.op)]


def reduce_scatter(c: Case) -> Outcome:
    inputs = [c.inputs(salt, op=c.op) for salt in range(c.size)]
    output = c.space()
    c.done(dist.reduce_scatter(output, [c.lay(x[c.rank]) for x in inputs], c.op, group=c.group, async_op=c.async_op))
    return [output], [reduced(inputs[c.rank], c.op)]


def reduce_scatter_uneven(c: Case) -> Outcome:
    """reduce_scatter of parts of different lengths."""
    lengths = [rank + 1 + elements(c.shape) % 5 for rank in range(c.size)]
    inputs = [c.inputs(("uneven", part), (length,), c.op) for part, length in enumerate(lengths)]
    output = c.space((lengths[c.rank],))
    c.done(dist.reduce_scatter(output, [c.lay(x[c.rank]) for x in inputs], c.op, group=c.group, async_op=c.async_op))
    return [output], [reduced(inputs[c.rank], c.op)]


def reduce_scatter_tensor(c: Case) -> Outcome:
    """The stacked form, as NCCL has it too."""
    inputs = c.inputs(shape=(c.size, *c.shape), op=c.op)
    output = c.space()
    c.done(dist.reduce_scatter_tensor(output, c.lay(inputs[c.rank]), c.op, group=c.group, async_op=c.async_op))
    return [output], [reduced(inputs, c.op)[c.rank]]


def reduce_scatter_concatenated(c: Case) -> Outcome:
    shape = c.shape or (1,)
    inputs = c.inputs(shape=(c.size * shape[0], *shape[1:]), op=c.op)
    output = c.space(shape)
    c.done(dist.reduce_scatter_tensor(output, c.lay(inputs[c.rank]), c.op, group=c.group, async_op=c.async_op))
    return [output], [reduced(inputs, c.op).view(c.size, *shape)[c.rank]]


def broadcast(c: Case) -> Outcome:
    inputs = c.inputs()
    x = c.lay(inputs[c.rank])
    c.done(dist.broadcast(x, group_src=c.root, group=c.group, async_op=c.async_op))
    return [x], [inputs[c.root]]


def all_gather(c: Case) -> Outcome:
    inputs = c.inputs()
    outputs = [c.space() for _ in range(c.size)]
    c.done(dist.all_gather(outputs, c.lay(inputs[c.rank]), group=c.group, async_op=c.async_op))
    return outputs, inputs


def all_gather_coalesced(c: Case) -> Outcome:
    shapes = [c.shape, (3,), (*c.shape, 2)]
    inputs = [c.inputs(salt, shape) for salt, shape in enumerate(shapes)]
    outputs = [[c.space(shape) for shape in shapes] for _ in range(c.size)]
    future = dist.all_gather_coalesced(outputs, [c.lay(x[c.rank]) for x in inputs], group=c.group, async_op=c.async_op)
    if c.async_op:  # a Future, not a Work
        future.wait()
    return [x for of_rank in outputs for x in of_rank], [x[rank] for rank in range(c.size) for x in inputs]


def all_gather_into_tensor(c: Case) -> Outcome:
    """The stacked form; of 0-dim tensors too."""
    inputs = c.inputs()
    output = c.space((c.size, *c.shape))
    c.done(dist.all_gather_into_tensor(output, c.lay(inputs[c.rank]), group=c.group, async_op=c.async_op))
    return [output], [torch.stack(inputs)]


def all_gather_concatenated(c: Case) -> Outcome:
    shape = c.shape or (1,)
    inputs = c.inputs(shape=shape)
    output = c.space((c.size * shape[0], *shape[1:]))
    c.done(dist.all_gather_into_tensor(output, c.lay(inputs[c.rank]), group=c.group, async_op=c.async_op))
    return [output], [torch.cat(inputs)]


def gather(c: Case) -> Outcome:
    inputs = c.inputs()
    outputs = [c.space() for _ in range(c.size)] if c.rank == c.root else None
    c.done(dist.gather(c.lay(inputs[c.rank]), outputs, group_dst=c.root, group=c.group, async_op=c.async_op))
    return outputs or [], inputs if outputs else []


def scatter(c: Case) -> Outcome:
    inputs = c.inputs(salt=c.root)
    output = c.space()
    parts = [c.lay(x) for x in inputs] if c.rank == c.root else None
    c.done(dist.scatter(output, parts, group_src=c.root, group=c.group, async_op=c.async_op))
    return [output], [inputs[c.rank]]


def all_to_all(c: Case) -> Outcome:
    inputs = [c.inputs(salt) for salt in range(c.size)]  # inputs[to][from]
    outputs = [c.space() for _ in range(c.size)]
    c.done(dist.all_to_all(outputs, [c.lay(x[c.rank]) for x in inputs], group=c.group, async_op=c.async_op))
    return outputs, inputs[c.rank]


def all_to_all_single(c: Case) -> Outcome:
    inputs = c.inputs(shape=(c.size, *c.shape))
    output = c.space((c.size, *c.shape))
    c.done(dist.all_to_all_single(output, c.lay(inputs[c.rank]), group=c.group, async_op=c.async_op))
    return [output], [torch.stack([x[c.rank] for x in inputs])]


def splits_of(c: Case) -> list[list[int]]:
    """Rows that each rank sends to each; some are none at all."""
    draw = random.Random(f"splits {c.seed} {c.shape}")
    return [[draw.choice([0, 1, 2, 5]) for _ in range(c.size)] for _ in range(c.size)]


def all_to_all_uneven(c: Case) -> Outcome:
    """all_to_all_single with split sizes, along dimension 0."""
    splits = splits_of(c)
    rows = c.shape[1:]
    inputs = [make((c.seed, "uneven"), rank, (sum(splits[rank]), *rows), c.dtype) for rank in range(c.size)]
    incoming = [splits[rank][c.rank] for rank in range(c.size)]
    output = c.space((sum(incoming), *rows))
    c.done(dist.all_to_all_single(output, c.lay(inputs[c.rank]), incoming, splits[c.rank], group=c.group,
                                  async_op=c.async_op))
    return [output], [torch.cat([x.split(splits[rank])[c.rank] for rank, x in enumerate(inputs)])]


def all_gather_uneven(c: Case) -> Outcome:
    """all_gather of tensors of different lengths."""
    inputs = [make((c.seed, "uneven"), rank, (rank + 1 + elements(c.shape) % 5,), c.dtype) for rank in range(c.size)]
    outputs = [c.space(tuple(x.shape)) for x in inputs]
    c.done(dist.all_gather(outputs, c.lay(inputs[c.rank]), group=c.group, async_op=c.async_op))
    return outputs, inputs


def barrier(c: Case) -> Outcome:
    c.done(dist.barrier(group=c.group, async_op=c.async_op))
    return [], []


REDUCING: dict[str, Callable[[Case], Outcome]] = {f.__name__: f for f in (
    all_reduce, all_reduce_coalesced, reduce, reduce_scatter, reduce_scatter_uneven, reduce_scatter_tensor,
    reduce_scatter_concatenated)}
MOVING: dict[str, Callable[[Case], Outcome]] = {f.__name__: f for f in (
    broadcast, all_gather, all_gather_uneven, all_gather_coalesced, all_gather_into_tensor, all_gather_concatenated,
    gather, scatter, all_to_all, all_to_all_single, all_to_all_uneven)}
# Calls for which Gloo is no oracle, with the reason.
NOT_IN_GLOO = {"all_gather_uneven": "wants equal sizes", "reduce_scatter_uneven": "wants equal sizes",
               "all_gather_coalesced": "wants one shape", "all_gather_into_tensor": "wants the concatenated form",
               "reduce_scatter_tensor": "wants the concatenated form", **torch_versions.GLOO_LACKS}
