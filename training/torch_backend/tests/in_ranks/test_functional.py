"""Collectives as values: functional collectives (what DTensor and torch.compile use), and those that autograd knows."""
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable

from support.groups import Pair, World, two_ranks_show_it
from support.launch import BACKEND
from support.values import Op, make, reduced, same


def inputs_of(pair: Pair, *shape: int) -> list[torch.Tensor]:
    return [make("functional", rank, shape, torch.float32) for rank in range(pair.size)]


def test_values(world: World) -> None:
    pair = world.pair()
    inputs = inputs_of(pair, 2 * pair.size, 3)
    x = inputs[pair.rank]
    kept = x.clone()
    same([functional.all_reduce(x, "sum", pair.tutti) + 0], [reduced(inputs, Op.SUM)], exact=True, what="sum")
    same([functional.all_reduce(x, "avg", pair.tutti) + 0], [reduced(inputs, Op.AVG)], exact=False, what="avg")
    same([functional.all_gather_tensor(x, 0, pair.tutti) + 0], [torch.cat(inputs)], exact=True, what="gather 0")
    same([functional.all_gather_tensor(x, 1, pair.tutti) + 0], [torch.cat(inputs, 1)], exact=True, what="gather 1")
    same([functional.reduce_scatter_tensor(x, "sum", 0, pair.tutti) + 0],
         [reduced(inputs, Op.SUM).chunk(pair.size)[pair.rank]], exact=True, what="reduce_scatter")
    same([functional.broadcast(x, 0, pair.tutti) + 0], [inputs[0]], exact=True, what="broadcast")
    same([functional.all_to_all_single(x, None, None, pair.tutti) + 0],
         [torch.cat([other.chunk(pair.size)[pair.rank] for other in inputs])], exact=True, what="all_to_all_single")
    same([x], [kept], exact=True, what="the input")


def test_coalesced(world: World) -> None:
    pair = world.pair()
    sizes = [pair.size * count for count in (1, 5, 100)]
    inputs = {size: inputs_of(pair, size) for size in sizes}
    mine = [inputs[size][pair.rank] for size in sizes]
    for size, got in zip(sizes, functional.all_reduce_coalesced(mine, "sum", pair.tutti)):
        same([got + 0], [reduced(inputs[size], Op.SUM)], exact=True, what="all_reduce_coalesced")
    for size, got in zip(sizes, functional.all_gather_into_tensor_coalesced(mine, pair.tutti)):
        same([got + 0], [torch.cat(inputs[size])], exact=True, what="all_gather_into_tensor_coalesced")
    for size, got in zip(sizes, functional.reduce_scatter_tensor_coalesced(mine, "sum", [0] * len(sizes), pair.tutti)):
        same([got + 0], [reduced(inputs[size], Op.SUM).chunk(pair.size)[pair.rank]], exact=True, what="reduce_scatter")


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all_single", "broadcast"])
def test_gradients(world: World, name: str) -> None:
    """Value and gradient, as over Gloo."""
    pair = world.pair()
    results = []
    for group in (pair.tutti, pair.gloo):
        x = make("gradient", pair.rank, (pair.size, 3), torch.float64).requires_grad_()
        weight = make("weight", pair.rank, (pair.size, 3), torch.float64)
        if name == "all_reduce":
            y = differentiable.all_reduce(x * 1, group=group)
        elif name == "all_gather":
            y = sum(differentiable.all_gather(x, group=group))
        elif name == "reduce_scatter":
            parts = [part.contiguous() for part in x.unbind(0)]
            y, weight = differentiable.reduce_scatter(torch.empty(3, dtype=x.dtype), parts, group=group), weight[0]
        elif name == "all_to_all_single":
            y = differentiable.all_to_all_single(torch.empty_like(x), x, group=group)
        else:
            y = differentiable.broadcast(x * 1, 0, group=group)
        (y * weight).sum().backward()
        assert x.grad is not None
        results.append([y.detach(), x.grad])
    same(results[0], results[1], exact=True, what=name)


@two_ranks_show_it
def test_compiled(world: World) -> None:
    """Traced by torch.compile; no code is generated, so it takes no compiler."""
    pair = world.pair()
    name = pair.tutti.group_name

    def step(x: torch.Tensor) -> torch.Tensor:
        y = functional.all_reduce(x * 2, "sum", name)
        return functional.all_gather_tensor(y + 1, 0, name).sum()

    x = torch.full((4,), pair.rank + 1.0)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert compiled(x).item() == step(x).item()
    torch._dynamo.reset()


@two_ranks_show_it
def test_compiled_collectives_of_the_user(world: World) -> None:
    """dist.all_reduce in a compiled function."""
    if BACKEND == "gloo":
        pytest.skip("nothing new")
    pair = world.pair()

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    compiled = torch.compile(step, backend="aot_eager")
    assert compiled(torch.ones(3)).eq(2 * pair.size + 1).all()
    torch._dynamo.reset()
