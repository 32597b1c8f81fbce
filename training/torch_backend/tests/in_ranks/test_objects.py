"""Collectives of Python objects, of different lengths on each rank."""
import torch
import torch.distributed as dist

from support.groups import World


def thing(rank: int) -> dict[str, object]:
    return {"rank": rank, "text": "x" * (rank * 1000), "list": list(range(rank))}


def test_all_gather_object(world: World) -> None:
    pair = world.pair()
    got: list[object] = [None] * pair.size
    dist.all_gather_object(got, thing(pair.rank), group=pair.tutti)
    assert got == [thing(rank) for rank in range(pair.size)]


def test_gather_object(world: World) -> None:
    pair = world.pair()
    for root in range(pair.size):
        got: list[object] | None = [None] * pair.size if pair.rank == root else None
        dist.gather_object(thing(pair.rank), got, dst=root, group=pair.tutti)
        assert got is None or got == [thing(rank) for rank in range(pair.size)]


def test_broadcast_object_list(world: World) -> None:
    pair = world.pair()
    for root in range(pair.size):
        got = [thing(7), "hello", None] if pair.rank == root else [None, None, None]
        dist.broadcast_object_list(got, src=root, group=pair.tutti)
        assert got == [thing(7), "hello", None]


def test_scatter_object_list(world: World) -> None:
    pair = world.pair()
    for root in range(pair.size):
        got: list[object] = [None]
        inputs = [thing(rank) for rank in range(pair.size)] if pair.rank == root else None
        dist.scatter_object_list(got, inputs, src=root, group=pair.tutti)
        assert got == [thing(pair.rank)]


def test_in_a_group(world: World) -> None:
    pair = world.pair(0, world.size - 1)
    if pair.rank >= 0:
        got: list[object] = [None, None]
        dist.all_gather_object(got, world.rank, group=pair.tutti)
        assert got == [0, world.size - 1]


def test_tensors_inside(world: World) -> None:
    pair = world.pair()
    got: list[torch.Tensor] = [torch.empty(0)] * pair.size
    dist.all_gather_object(got, torch.arange(pair.rank), group=pair.tutti)
    assert [x.numel() for x in got] == list(range(pair.size))
