"""Random programs: collectives of all kinds, sizes and groups, some waited for at once and some much later, with
messages between ranks among them. The seed is printed with a failure; TUTTI_TORCH_TEST_SEED repeats it."""
import random

import pytest
import torch
import torch.distributed as dist

from support import calls
from support.calls import Case, Tensors
from support.groups import Pair, World
from support.launch import BACKEND
from support.values import DTYPES, FLOATS, LAYOUTS, Op, make, ops_of, same

CALLS = 60
SHAPES = [(), (0,), (1,), (3,), (2, 3), (257,), (64, 33), (40_001,)]


def groups_of(world: World) -> list[Pair]:
    pairs = [world.pair()]
    if world.size > 2:
        pairs += [world.pair(0, 1), world.pair(*range(1, world.size)), world.pair(0, world.size - 1)]
    return pairs


def random_case(draw: random.Random, pair: Pair, name: str, pending: list[dist.Work], seed: object) -> Case:
    """All draws are made on all ranks, whether they are members or not."""
    reducing = name in calls.REDUCING
    dtype = draw.choice([t for t in DTYPES if not reducing or ops_of(t)])
    op = draw.choice(ops_of(dtype)) if reducing else Op.SUM
    shape, layout = draw.choice(SHAPES), draw.choice(LAYOUTS)
    if BACKEND == "gloo":  # the tests tried on Gloo itself
        dtype, op, shape, layout = torch.float32, Op.SUM, (5, 3), "contiguous"
    return Case(pair.tutti, pair.rank, pair.size, dtype, shape, op, draw.randrange(pair.size), layout,
                async_op=draw.random() < 0.5, seed=seed, pending=pending)


@pytest.mark.parametrize("number", range(4))
def test_collectives(world: World, number: int) -> None:
    draw = world.random(f"collectives {number}")
    pairs = groups_of(world)
    names = [*calls.REDUCING, *calls.MOVING]
    functions = {**calls.REDUCING, **calls.MOVING}
    pending: list[dist.Work] = []
    outcomes: list[tuple[str, Tensors, Tensors, bool]] = []
    history = []
    for step in range(CALLS):
        pair, name = draw.choice(pairs), draw.choice(names)
        case = random_case(draw, pair, name, pending, (world.seed, number, step))
        wait_now, order = draw.random() < 0.2, draw.random()
        if pair.rank >= 0:
            history.append(f"{step}: {name}, group {pair.ranks}, {case}")
            got, expected = functions[name](case)
            outcomes.append((history[-1], got, expected, case.op != Op.AVG))
        if wait_now:
            random.Random(order).shuffle(pending)  # another order on purpose: waiting concerns no other rank
            while pending:
                pending.pop().wait()
    for work in pending:
        work.wait()
    for what, got, expected, exact in outcomes:
        same(got, expected, exact=exact, what=what)


@pytest.mark.parametrize("number", range(4))
def test_messages(world: World, number: int) -> None:
    """Each rank has all its sends and receives under way at once, in an order of its own. With tags that differ the
    order does not matter; messages of one tag between two ranks match in order."""
    draw = world.random(f"messages {number}")
    pair = world.pair()
    ways: dict[tuple[int, int, int], list[tuple[int, torch.dtype]]] = {}
    for _ in range(40):
        source = draw.randrange(pair.size)
        target = draw.choice([rank for rank in range(pair.size) if rank != source])
        way = (source, target, draw.choice([0, 1, 7, 1_000_000]))
        ways.setdefault(way, []).append((draw.choice([0, 1, 5, 1000, 70_000]), draw.choice(FLOATS)))
    mine = [way for way in ways if pair.rank in way[:2]]
    own = random.Random(f"{world.seed}/{number}/{pair.rank}")
    left = {way: list(enumerate(ways[way])) for way in mine}
    works: list[dist.Work] = []
    outcomes = []
    while left:
        way = own.choice(list(left))
        source, target, tag = way
        index, (count, dtype) = left[way].pop(0)
        if not left[way]:
            del left[way]
        wanted = make((world.seed, number, way, index), 0, (count,), dtype)
        if pair.rank == source:
            works.append(dist.isend(wanted, target, group=pair.tutti, tag=tag))
        else:
            space = torch.full((count,), -1, dtype=dtype)
            works.append(dist.irecv(space, source, group=pair.tutti, tag=tag))
            outcomes.append((f"message {index} of {way}", space, wanted))
    own.shuffle(works)
    for work in works:
        work.wait()
    for what, got, wanted in outcomes:
        same([got], [wanted], exact=True, what=what)


def test_collectives_beside_messages(world: World) -> None:
    """A receive that is under way holds up no collective, nor the other way round."""
    pair = world.pair()
    after, before = (pair.rank + 1) % pair.size, (pair.rank - 1) % pair.size
    for number in range(10):
        space = torch.empty(1000)
        receive = dist.irecv(space, before, group=pair.tutti, tag=number)
        x = torch.full((100,), float(pair.rank))
        dist.all_reduce(x, group=pair.tutti)
        assert x[0] == sum(range(pair.size))
        later = dist.all_reduce(x, group=pair.tutti, async_op=True)
        send = dist.isend(torch.full((1000,), float(pair.rank + number)), after, group=pair.tutti, tag=number)
        assert later is not None and send is not None and receive is not None
        receive.wait()
        later.wait()
        send.wait()
        assert space.eq(before + number).all()
