"""FSDP2 (fully_shard), FSDP1 and tensor parallelism by DTensor give the losses that they give over Gloo."""
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy,
                                    fully_shard)
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel,
                                               parallelize_module)
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict, StateDictOptions
from torch.nn import functional as F

from support.groups import Pair, World
from support.launch import BACKEND
from support.models import STEPS, VOCABULARY, Stack, agree, float_type, made, token_loss, tokens, two_ranks_only

Wrap = Callable[[nn.Module, dist.ProcessGroup], nn.Module]


def losses(pair: Pair, group: dist.ProcessGroup, wrap: Wrap, clip: bool = False,
           accumulate: bool = False) -> Iterator[float]:
    """Every rank has rows of its own."""
    model = wrap(made(lambda: Stack(dtype=float_type(pair))), group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        if accumulate:
            model.set_requires_gradient_sync(False)
            token_loss(model, pair.rank, 100 + step).backward()
            model.set_requires_gradient_sync(True)
        loss = token_loss(model, pair.rank, step)
        loss.backward()
        if clip:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            yield (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()
        optimizer.step()
        yield loss.item()


def check(pair: Pair, wrap: Wrap, **options: bool) -> None:
    agree(pair, losses(pair, pair.tutti, wrap, **options), losses(pair, pair.gloo, wrap, **options))


def sharded(**options: object) -> Wrap:
    def wrap(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
        mesh = DeviceMesh.from_group(group, "cpu")
        for block in model.blocks:
            fully_shard(block, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)

    return wrap


@pytest.mark.parametrize("reshard", [True, False], ids=["reshard", "keep"])
def test_fully_shard(world: World, reshard: bool) -> None:
    check(world.pair(), sharded(reshard_after_forward=reshard))


def test_buffers_of_the_backend(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered and reduced in registered memory, which FSDP2 asks the backend for."""
    pair = world.pair()
    if BACKEND == "gloo":
        pytest.skip("Gloo has no memory of its own")
    import tutti_torch
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import ProcessGroupAllocMixin
    allocate, given = ProcessGroupAllocMixin.allocate, []

    def noted(self: ProcessGroupAllocMixin, *size: object, **how: object) -> torch.Tensor:
        given.append(allocate(self, *size, **how))  # type: ignore[arg-type]
        return given[-1]

    def wrap(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
        model = sharded()(model, group)
        for module in model.modules():
            if isinstance(module, FSDPModule) and group is pair.tutti:
                module.set_allocate_memory_from_process_group_for_comm(True)
        return model

    monkeypatch.setattr(ProcessGroupAllocMixin, "allocate", noted)
    before = tutti_torch.info()["registered_memory"]["live"]
    check(pair, wrap)
    assert given and tutti_torch.info()["registered_memory"]["live"] - before >= sum(x.nbytes for x in given)


def test_clipping(world: World) -> None:
    check(world.pair(), sharded(), clip=True)


def test_accumulation(world: World) -> None:
    check(world.pair(), sharded(), accumulate=True)


@pytest.mark.parametrize("reduce", [torch.float32, torch.bfloat16])
def test_mixed_precision(world: World, reduce: torch.dtype) -> None:
    """Gathered and computed in bf16, added in reduce_dtype: of two numbers, so to the bit."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    check(two_ranks_only(world), sharded(mp_policy=policy))


def test_parameters_of_several_types(world: World) -> None:
    """What FSDP2 gathers as bytes. Those of another type are frozen."""
    pair = two_ranks_only(world)

    def wrap(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
        norm = model.blocks[0].norm.to(torch.bfloat16).requires_grad_(False)
        norm.forward = lambda x: F.layer_norm(  # type: ignore[method-assign]
            x.bfloat16(), norm.normalized_shape, norm.weight, norm.bias).float()
        return sharded()(model, group)

    check(pair, wrap)


def test_divide_factor(world: World) -> None:
    """A factor of the user's goes as PREMUL_SUM, which Gloo has not: there the same comes of the plain average."""
    pair = world.pair()
    if BACKEND == "gloo":
        pytest.skip("Gloo has no PREMUL_SUM")

    def wrap(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
        model = sharded()(model, group)
        for module in model.modules():
            if group is pair.tutti and isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(float(2 * pair.size))
        return model

    def norms(group: dist.ProcessGroup) -> Iterator[float]:
        model = wrap(made(Stack), group)  # of f32: in f64 FSDP2 divides by itself
        token_loss(model, pair.rank, 0).backward()
        for parameter in model.parameters():
            assert isinstance(parameter.grad, DTensor)
            yield parameter.grad.full_tensor().norm().item()

    for mine, theirs in zip(norms(pair.tutti), norms(pair.gloo)):
        assert mine * 2 == pytest.approx(theirs, rel=1e-5)  # sums of n in other orders: (n - 1) epsilons


def test_hybrid(world: World) -> None:
    """Sharded in pairs, replicated across them."""
    if world.size != 4:
        pytest.skip("needs 4 ranks")
    pair = world.pair()
    shards, replicas = [world.pair(0, 1), world.pair(2, 3)], [world.pair(0, 2), world.pair(1, 3)]
    shard = next(part for part in shards if part.rank >= 0)
    replica = next(part for part in replicas if part.rank >= 0)

    def wrap(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
        groups = [replica.tutti, shard.tutti] if group is pair.tutti else [replica.gloo, shard.gloo]
        mesh = DeviceMesh.from_group(groups, "cpu", mesh=torch.tensor([[0, 1], [2, 3]]),
                                     mesh_dim_names=("replica", "shard"))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    check(pair, wrap)


def test_state_comes_back(world: World) -> None:
    """The whole state, gathered on all ranks, and given back from rank 0."""
    pair = world.pair()
    whole = made(Stack).state_dict()
    model = sharded()(made(Stack), pair.tutti)
    got = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=False))
    assert all(torch.equal(got[name], value) for name, value in whole.items())
    other = sharded()(made(Stack, seed=9), pair.tutti)
    set_model_state_dict(other, dict(whole) if pair.rank == 0 else {},  # it empties what it is given
                         options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    for (name, parameter) in other.named_parameters():
        assert isinstance(parameter, DTensor)
        assert torch.equal(parameter.full_tensor(), whole[name])


@pytest.mark.parametrize("strategy", [ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP,
                                      ShardingStrategy.NO_SHARD], ids=lambda strategy: strategy.name.lower())
def test_fsdp1(world: World, strategy: ShardingStrategy) -> None:
    check(world.pair(), lambda model, group: FullyShardedDataParallel(
        model, process_group=group, sharding_strategy=strategy, device_id=torch.device("cpu"), use_orig_params=True))


def test_distributed_tensors(world: World) -> None:
    """Every way from one placement to another, and a matrix product of sharded factors."""
    pair = world.pair()
    for group in (pair.tutti, pair.gloo):
        mesh = DeviceMesh.from_group(group, "cpu")
        whole = torch.arange(24.0 * pair.size).view(4 * pair.size, 6)
        for source in (Shard(0), Shard(1), Replicate()):
            x = distribute_tensor(whole, mesh, [source])
            for target in (Shard(0), Shard(1), Replicate()):
                assert torch.equal(x.redistribute(mesh, [target]).full_tensor(), whole)
        partial = DTensor.from_local(torch.full((5, 3), float(pair.rank)), mesh, [Partial()])
        for target in (Replicate(), Shard(0), Shard(1)):  # 5 rows: uneven shards
            assert partial.redistribute(mesh, [target]).full_tensor().eq(sum(range(pair.size))).all()
        mean = DTensor.from_local(torch.full((4,), 2.0 * pair.rank), mesh, [Partial("avg")])
        assert mean.full_tensor().eq(pair.size - 1).all()
        left = distribute_tensor(whole, mesh, [Shard(1)])
        right = distribute_tensor(whole.t().contiguous(), mesh, [Shard(0)])
        assert torch.equal((left @ right).full_tensor(), whole @ whole.t())
        uneven = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])
        assert uneven.full_tensor().tolist() == list(range(7))


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
def test_tensor_parallel(world: World, sequence: bool) -> None:
    """All ranks have the same rows; matrices are cut by columns, then by rows; with `sequence` norms are cut, too."""
    if world.size == 3:
        pytest.skip("3 divides no width here")
    pair = world.pair()

    def run(group: dist.ProcessGroup) -> Iterator[float]:
        mesh = DeviceMesh.from_group(group, "cpu")
        model = made(lambda: Stack(dtype=float_type(pair)))
        for block in model.blocks:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            if sequence:
                plan = {"norm": SequenceParallel(use_local_output=False),
                        "up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
                        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False)}
            parallelize_module(block, mesh, plan)
        if sequence:
            parallelize_module(model, mesh, {
                "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1),
                                             use_local_output=False),
                "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs, targets = tokens(0, step)
            output = model(inputs)
            if sequence:
                with loss_parallel():
                    loss = F.cross_entropy(output.flatten(0, 1), targets.reshape(-1))
                    loss.backward()
            else:
                loss = F.cross_entropy(output.reshape(-1, VOCABULARY), targets.reshape(-1))
                loss.backward()
            optimizer.step()
            yield (loss.full_tensor() if isinstance(loss, DTensor) else loss).item()

    agree(pair, run(pair.tutti), run(pair.gloo))


def test_two_dimensions(world: World) -> None:
    """fully_shard over one dimension of a mesh, tensor parallel over the other."""
    if world.size != 4:
        pytest.skip("needs 4 ranks")
    pair = world.pair()
    dp_pairs, tp_pairs = [world.pair(0, 2), world.pair(1, 3)], [world.pair(0, 1), world.pair(2, 3)]
    dp = next(part for part in dp_pairs if part.rank >= 0)
    tp = next(part for part in tp_pairs if part.rank >= 0)

    def run(groups: list[dist.ProcessGroup]) -> Iterator[float]:
        mesh = DeviceMesh.from_group(groups, "cpu", mesh=torch.tensor([[0, 1], [2, 3]]), mesh_dim_names=("dp", "tp"))
        model = made(lambda: Stack(dtype=torch.float64))
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = token_loss(model, dp.rank, step)
            loss.backward()
            optimizer.step()
            yield loss.item()

    agree(pair, run([dp.tutti, tp.tutti]), run([dp.gloo, tp.gloo]))
