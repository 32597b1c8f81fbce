"""Every collective x operation x type x shape x layout x root, to the bit, against the formula and against Gloo."""
import dataclasses
import itertools

import pytest
import torch
import torch.distributed as dist

from support import calls
from support.calls import Case
from support.groups import RANKS, Pair, World
from support.launch import BACKEND, DEVICE
from support.values import (ARITHMETIC, COMPLEX, DTYPES, FLOATS, FP8, LAYOUTS, Op, gloo_takes, make, ops_of, reduced,
                            same)

SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (4, 3, 2), (1025,)]
NUMBERS = [dtype for dtype in DTYPES if ops_of(dtype)]
ONE_OF_EACH_SIZE = [torch.uint8, torch.bfloat16, torch.float32, torch.int64, torch.complex128]
MOVED = DTYPES if RANKS == 2 else ONE_OF_EACH_SIZE  # what moves is bytes


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check(pair: Pair, name: str, case: Case, oracle: bool) -> None:
    """The call on the group under test; then, if Gloo has it, the same on Gloo."""
    if BACKEND == "gloo" and (not oracle or case.dtype is torch.bool):
        return  # these tests tried on Gloo itself
    call = {**calls.REDUCING, **calls.MOVING}[name]
    got, expected = call(case)
    exact = case.op != Op.AVG
    same(got, expected, exact=exact, what=f"{name}: {case}")
    if oracle:
        theirs, _ = call(dataclasses.replace(case, group=pair.gloo))
        if case.dtype is torch.bool:  # Gloo adds bytes: 1 + 1 is a true with other bits
            theirs = [x.view(torch.uint8) != 0 for x in theirs]
        same(got, theirs, exact=exact, what=f"{name} against Gloo: {case}")


def gloo_can(name: str, case: Case) -> bool:
    """Whether Gloo is asked too: in 2 ranks, of what it takes and gives the right result. On a device the formula alone is."""
    if case.size > 2:  # the formula is the same in any number of ranks, and Gloo's ranks wait long for a core
        return False
    if DEVICE != "cpu" or name in calls.NOT_IN_GLOO or not gloo_takes(case.dtype, case.op if name in calls.REDUCING else None):
        return False
    if case.layout not in ("contiguous", "offset") or 0 in case.shape:
        return False
    if case.dtype.is_complex and name in ("gather", "all_reduce_coalesced"):
        return False
    if case.shape == () and "scatter" in name:
        return False  # it crashes
    return not (case.op == Op.AVG and name == "reduce")


@pytest.mark.parametrize("dtype", NUMBERS, ids=name_of)
@pytest.mark.parametrize("name", calls.REDUCING)
def test_reducing(world: World, name: str, dtype: torch.dtype) -> None:
    pair = world.pair()
    for number, (shape, op) in enumerate(itertools.product(SHAPES, ops_of(dtype))):
        case = Case(pair.tutti, pair.rank, pair.size, dtype, shape, op, root=number % pair.size,
                    layout=LAYOUTS[number % len(LAYOUTS)], async_op=number % 3 == 0, seed=number)
        check(pair, name, case, gloo_can(name, case))


@pytest.mark.parametrize("dtype", MOVED, ids=name_of)
@pytest.mark.parametrize("name", calls.MOVING)
def test_moving(world: World, name: str, dtype: torch.dtype) -> None:
    pair = world.pair()
    for number, (shape, layout) in enumerate(itertools.product(SHAPES, LAYOUTS)):
        case = Case(pair.tutti, pair.rank, pair.size, dtype, shape, root=number % pair.size, layout=layout,
                    async_op=number % 3 == 0, seed=number)
        check(pair, name, case, gloo_can(name, case))


@pytest.mark.parametrize("name", [*calls.REDUCING, *calls.MOVING])
def test_every_root_and_way_of_calling(world: World, name: str) -> None:
    pair = world.pair()
    for root, async_op, layout in itertools.product(range(pair.size), (False, True), LAYOUTS):
        case = Case(pair.tutti, pair.rank, pair.size, shape=(3, 4), root=root, async_op=async_op, layout=layout)
        check(pair, name, case, gloo_can(name, case))


@pytest.mark.parametrize("name", [*calls.REDUCING, *calls.MOVING])
def test_large(world: World, name: str) -> None:
    """Past every cache and every piece in which a message may be cut, and of a length that nothing divides."""
    pair = world.pair()
    shape = ((1 << 20) + 3,) if name in ("all_reduce", "broadcast") else ((1 << 18) + 3,)
    for layout in ("contiguous", "strided"):
        case = Case(pair.tutti, pair.rank, pair.size, shape=shape, layout=layout)
        check(pair, name, case, gloo_can(name, case))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=name_of)
def test_rounding(world: World, dtype: torch.dtype) -> None:
    """Numbers whose sums round: Gloo's bits with 2 ranks, where a sum has one order, and a bound with more."""
    pair = world.pair()
    inputs = [torch.randn(10_007, dtype=dtype, generator=torch.Generator().manual_seed(rank))
              for rank in range(pair.size)]
    mine, theirs = inputs[pair.rank].clone(), inputs[pair.rank].clone()
    dist.all_reduce(mine, group=pair.tutti)
    dist.all_reduce(theirs, group=pair.gloo)
    if pair.size == 2:
        same([mine], [theirs], exact=True, what="all_reduce")
    # n - 1 additions, each of which rounds by half an epsilon of a partial sum, which the sum of magnitudes bounds; a
    # complex number rounds so in both of its parts, which together are at most twice that.
    wide = [x.to(torch.complex128 if dtype.is_complex else torch.float64) for x in inputs]
    bound = (2 if dtype.is_complex else 1) * (pair.size - 1) * torch.finfo(dtype).eps / 2 * sum(x.abs() for x in wide)
    # One more rounding: a sum in a wider type that is brought back at the end.
    bound = bound + torch.finfo(dtype).eps / 2 * sum(wide).abs()
    assert ((mine.to(wide[0].dtype) - sum(wide)).abs() <= bound).all()
    everyone = [torch.empty_like(mine) for _ in range(pair.size)]
    dist.all_gather(everyone, mine, group=pair.tutti)
    same(everyone, [mine] * pair.size, exact=True, what="all ranks hold the same bits")


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_not_a_number_and_infinity(world: World, dtype: torch.dtype) -> None:
    pair = world.pair()
    specials = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1.0], dtype=dtype)
    x = specials.clone() if pair.rank == 0 else torch.ones(6, dtype=dtype)
    dist.all_reduce(x, group=pair.tutti)
    assert x.isnan().tolist() == [False, False, True, False, False, False]
    assert x[0] == float("inf") and x[1] == float("-inf") and x[5] == pair.size


@pytest.mark.parametrize("dtype", [*FLOATS, *FP8, *COMPLEX], ids=name_of)
@pytest.mark.parametrize("how", ["number", "tensor"])
def test_premul_sum(world: World, dtype: torch.dtype, how: str) -> None:
    """FSDP's division before the sum. A power of two, so that the product is exact."""
    pair = world.pair()
    factor = 0.25 if how == "number" else torch.tensor([0.25], dtype=dtype if dtype in FLOATS else torch.float32)
    op = dist._make_nccl_premul_sum(factor)
    inputs = [make("premul", rank, (4 * pair.size,), dtype, Op.SUM) for rank in range(pair.size)]
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = [reduced([(part.to(wide) * 0.25).to(dtype) for part in inputs], Op.SUM)]
    x = inputs[pair.rank].clone()
    dist.all_reduce(x, op=op, group=pair.tutti)
    same([x], expected, exact=True, what="all_reduce")
    x = inputs[pair.rank].clone()
    dist.reduce(x, 0, op=op, group=pair.tutti)
    same([x] if pair.rank == 0 else [], expected if pair.rank == 0 else [], exact=True, what="reduce")
    x = inputs[pair.rank].new_empty(4)
    dist.reduce_scatter_tensor(x, inputs[pair.rank], op=op, group=pair.tutti)
    same([x], [expected[0].chunk(pair.size)[pair.rank]], exact=True, what="reduce_scatter_tensor")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=name_of)
def test_sparse(world: World, dtype: torch.dtype) -> None:
    """A sum of sparse tensors: rows that several ranks have, rows that one has, a rank that has none."""
    pair = world.pair()
    results = []
    for group in (pair.tutti, pair.gloo):
        mine = [0, 3 + pair.rank, 3 + pair.rank] if pair.rank != 1 else []
        values = make("sparse", pair.rank, (len(mine), 4), dtype, Op.SUM)
        x = torch.sparse_coo_tensor(torch.tensor([mine], dtype=torch.int64), values, (3 + pair.size, 4)).coalesce()
        dist.all_reduce(x, group=group)
        results.append(x.coalesce())
    for part in (torch.Tensor.indices, torch.Tensor.values):
        same([part(results[0])], [part(results[1])], exact=True, what="sparse")


def test_refusals_come_before_anything_is_done(world: World) -> None:
    """What cannot be done raises on every rank, in a sentence, and leaves the group good."""
    pair = world.pair()
    refused: list[tuple[torch.dtype, Op]] = [
        (torch.float32, Op.BAND), (torch.bfloat16, Op.BXOR), (torch.complex64, Op.MAX), (torch.complex64, Op.PRODUCT),
        (torch.float8_e4m3fnuz, Op.SUM), (torch.bool, Op.AVG), (torch.float8_e5m2, Op.BOR),
        (torch.int32, dist._make_nccl_premul_sum(0.5)), (torch.int16, dist._make_nccl_premul_sum(0.5)),
        (torch.bool, dist._make_nccl_premul_sum(0.5))]
    for dtype, op in refused:
        x = torch.ones(4).to(dtype)
        before = x.clone()
        with pytest.raises((RuntimeError, ValueError)) as error:
            dist.all_reduce(x, op, group=pair.tutti)
            pytest.fail(f"{op} of {dtype} went through")
        assert len(str(error.value)) > 20, f"{dtype} {op}: {error.value}"
        same([x], [before], exact=True, what=f"{dtype} {op}")
    x = torch.ones(4)
    dist.all_reduce(x, group=pair.tutti)
    assert x.tolist() == [pair.size] * 4


def test_arguments_that_do_not_fit(world: World) -> None:
    pair = world.pair()
    n = pair.size
    wrong = [
        lambda: dist.all_gather_into_tensor(torch.empty(n * 3 + 1), torch.ones(3), group=pair.tutti),
        lambda: dist.reduce_scatter_tensor(torch.empty(3), torch.ones(n * 3 + 1), group=pair.tutti),
        lambda: dist.all_to_all_single(torch.empty(n), torch.ones(n), [1] * (n - 1), [1] * n, group=pair.tutti),
        lambda: dist.all_to_all_single(torch.empty(n), torch.ones(n), [2] * n, [1] * n, group=pair.tutti),
        lambda: dist.broadcast(torch.ones(2), src=n + 7, group=pair.tutti),
        lambda: dist.all_reduce(torch.ones(2).to_sparse(), op=Op.MAX, group=pair.tutti),
    ]
    for number, call in enumerate(wrong):
        with pytest.raises((RuntimeError, ValueError)):
            call()
            pytest.fail(f"call {number} went through")
    dist.barrier(group=pair.tutti)


@pytest.mark.parametrize("op", ARITHMETIC, ids=lambda op: str(op).split(".")[-1])
def test_same_memory_in_and_out(world: World, op: Op) -> None:
    """Input and output may be the same memory: FSDP gathers into the buffer that holds its own part."""
    pair = world.pair()
    inputs = [make("in place", rank, (5,), torch.float32, op) for rank in range(pair.size)]
    whole = torch.zeros(pair.size, 5)
    whole[pair.rank] = inputs[pair.rank]
    dist.all_gather_into_tensor(whole.view(-1), whole[pair.rank], group=pair.tutti)
    same([whole], [torch.stack(inputs)], exact=True, what="all_gather_into_tensor in place")
    parts = [make("in place", rank, (pair.size, 5), torch.float32, op) for rank in range(pair.size)]
    mine = parts[pair.rank].clone()
    dist.reduce_scatter_tensor(mine[pair.rank], mine.view(-1), op, group=pair.tutti)
    same([mine[pair.rank]], [reduced(parts, op)[pair.rank]], exact=True, what="reduce_scatter_tensor in place")


def test_all_gather_of_different_sizes(world: World) -> None:
    """Every rank knows all sizes; some are 0."""
    pair = world.pair()
    outputs = [torch.zeros(size % 3, 2) for size in range(pair.size)]
    dist.all_gather(outputs, torch.full((pair.rank % 3, 2), float(pair.rank)), group=pair.tutti)
    for rank, output in enumerate(outputs):
        assert output.tolist() == [[rank, rank]] * (rank % 3)


def test_p6_a_rank_expects_nothing_of_a_peer(world: World) -> None:
    if BACKEND == "gloo":
        pytest.skip("of this backend")
    pair = world.pair()
    outputs = [torch.zeros(1) for _ in range(pair.size)]
    if pair.rank == pair.size - 1:
        outputs[0] = torch.zeros(0)
    with pytest.raises(dist.DistBackendError):
        dist.all_gather(outputs, torch.ones(1), group=pair.tutti)
    world.renew()
