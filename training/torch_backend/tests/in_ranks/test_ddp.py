"""DistributedDataParallel and what goes with it gives the losses that it gives over Gloo."""
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from support.groups import Pair, World
from support.models import (STEPS, WIDTH, Mlp, MlpWithoutSpare, agree, float_type, made, rows,
                            two_ranks_only)

SMALL_BUCKETS_MIB = 0.001  # several buckets for a small model


def losses(pair: Pair, group: dist.ProcessGroup, prepare: Callable[[DDP, dist.ProcessGroup], None] | None = None,
           spare: Callable[[int], bool] = lambda step: False, accumulate: int = 1,
           make: Callable[[torch.dtype], nn.Module] = Mlp, **options: object) -> Iterator[float]:
    dtype = float_type(pair)
    options.setdefault("bucket_cap_mb", SMALL_BUCKETS_MIB)
    model = DDP(made(lambda: make(dtype)), process_group=group, **options)
    if prepare:
        prepare(model, group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(accumulate):
            x = rows(pair.rank, step * accumulate + part, 4, WIDTH, dtype=dtype)
            if part + 1 < accumulate:
                with model.no_sync():
                    loss = model(x, spare(step)).square().mean()
                    loss.backward()
            else:
                loss = model(x, spare(step)).square().mean()
                loss.backward()
        optimizer.step()
        yield loss.item()
    for parameter in model.parameters():
        yield parameter.double().sum().item()


def check(pair: Pair, **options: object) -> None:
    agree(pair, losses(pair, pair.tutti, **options), losses(pair, pair.gloo, **options))


@pytest.mark.parametrize("view", [False, True], ids=["copied", "bucket_view"])
@pytest.mark.parametrize("bucket", [SMALL_BUCKETS_MIB, 25])
def test_plain(world: World, view: bool, bucket: float) -> None:
    check(world.pair(), find_unused_parameters=True, gradient_as_bucket_view=view, bucket_cap_mb=bucket)


def test_every_parameter_used(world: World) -> None:
    check(world.pair(), spare=lambda step: step % 2 == 0, find_unused_parameters=True)


def test_static_graph(world: World) -> None:
    check(world.pair(), static_graph=True)


def test_unused_on_some_ranks(world: World) -> None:
    """A parameter that only some ranks use in a step."""
    pair = world.pair()
    check(pair, spare=lambda step: (step + pair.rank) % 2 == 0, find_unused_parameters=True)


def test_accumulation_without_communication(world: World) -> None:
    check(world.pair(), accumulate=3, find_unused_parameters=True)


def test_hook_allreduce(world: World) -> None:
    check(world.pair(), find_unused_parameters=True,
          prepare=lambda model, group: model.register_comm_hook(group, default_hooks.allreduce_hook))


@pytest.mark.parametrize("name", ["fp16_compress_hook", "bf16_compress_hook"])
def test_hook_compress(world: World, name: str) -> None:
    def hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return getattr(default_hooks, name)(group, bucket)  # DDP knows the bf16 one by its name, and wants NCCL for it

    check(two_ranks_only(world), find_unused_parameters=True,
          prepare=lambda model, group: model.register_comm_hook(group, hook))


def test_hook_power_sgd(world: World) -> None:
    """Collectives started in a callback of the one before. One bucket, and every parameter is used: else callbacks race
    with DDP's next call for which comes first, on any backend whose futures complete when the work is done."""
    def prepare(model: DDP, group: dist.ProcessGroup) -> None:
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2, random_seed=5)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    check(two_ranks_only(world), make=MlpWithoutSpare, prepare=prepare, bucket_cap_mb=25)


def test_hook_of_the_user(world: World) -> None:
    """Two collectives in one chain of futures."""
    def hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        x = bucket.buffer()
        work = dist.all_reduce(x, group=group, async_op=True)
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0].div_(group.size()))

    check(world.pair(), find_unused_parameters=True,
          prepare=lambda model, group: model.register_comm_hook(group, hook))


def test_hook_post_local_sgd(world: World) -> None:
    def prepare(model: DDP, group: dist.ProcessGroup) -> None:
        state = post_localSGD_hook.PostLocalSGDState(group, group, start_localSGD_iter=2)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)

    check(world.pair(), find_unused_parameters=True, prepare=prepare)


def test_first_parameters_are_rank_0s(world: World) -> None:
    pair = world.pair()
    model = DDP(made(Mlp, seed=pair.rank), process_group=pair.tutti)
    expected = made(Mlp, seed=0)
    for mine, wanted in zip(model.module.parameters(), expected.parameters()):
        assert torch.equal(mine, wanted)


def test_models_that_differ_are_told(world: World) -> None:
    """Found when the model is wrapped, on every rank."""
    pair = world.pair()
    layers = [nn.Linear(3, 3) for _ in range(2 if pair.rank == 1 else 1)]
    with pytest.raises(RuntimeError, match="same model across all ranks"):
        DDP(nn.Sequential(*layers), process_group=pair.tutti)
    dist.barrier(group=pair.tutti)


def test_buffers(world: World) -> None:
    """Running statistics are rank 0's."""
    pair = world.pair()
    results = []
    for group in (pair.tutti, pair.gloo):
        model = DDP(made(lambda: nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8))), process_group=group)
        for step in range(3):
            model(rows(pair.rank, step, 6, WIDTH)).sum().backward()
        results.append(model.module[1].running_mean.tolist())
    assert results[0] == results[1]


def test_join_with_uneven_inputs(world: World) -> None:
    pair = world.pair()

    def run(group: dist.ProcessGroup) -> list[float]:
        dtype = float_type(pair)
        model = DDP(made(lambda: nn.Linear(WIDTH, 4, dtype=dtype)), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Join([model]):
            for step in range(2 + 2 * pair.rank):
                optimizer.zero_grad()
                model(rows(pair.rank, step, 4, WIDTH, dtype=dtype)).square().mean().backward()
                optimizer.step()
        return [parameter.double().sum().item() for parameter in model.parameters()]

    agree(pair, run(pair.tutti), run(pair.gloo))


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "buckets_as_views"])
def test_optimizer_state_sharded(world: World, overlap: bool) -> None:
    pair = world.pair()

    def run(group: dist.ProcessGroup) -> Iterator[float]:
        dtype = float_type(pair)
        model = DDP(made(lambda: Mlp(dtype)), process_group=group, find_unused_parameters=True)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.01,
                                            parameters_as_bucket_view=overlap)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(rows(pair.rank, step, 4, WIDTH, dtype=dtype)).square().mean()
            loss.backward()
            optimizer.step()
            yield loss.item()
        optimizer.consolidate_state_dict(to=0)
        if pair.rank == 0:
            yield float(len(optimizer.state_dict()["state"]))

    agree(pair, run(pair.tutti), run(pair.gloo))


def test_sampler(world: World) -> None:
    """Every row once per epoch over all ranks, and the losses of Gloo."""
    pair = world.pair()
    data = TensorDataset(torch.arange(24.0).view(-1, 1))

    def run(group: dist.ProcessGroup) -> Iterator[float]:
        sampler = DistributedSampler(data, num_replicas=pair.size, rank=pair.rank, seed=4)
        model = DDP(made(lambda: nn.Linear(1, 1, dtype=torch.float64)), process_group=group)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            seen = []
            for x, in DataLoader(data, batch_size=2, sampler=sampler):
                model.zero_grad()
                loss = model(x.double() / 24).square().mean()
                loss.backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.1 * parameter.grad
                seen += x.flatten().tolist()
                yield loss.item()
            everything: list[list[float]] = [[]] * pair.size
            dist.all_gather_object(everything, seen, group=group)
            assert sorted(sum(everything, [])) == list(range(24))

    agree(pair, run(pair.tutti), run(pair.gloo))


def test_sparse_gradients(world: World) -> None:
    pair = world.pair()

    def run(group: dist.ProcessGroup) -> Iterator[float]:
        dtype = float_type(pair)
        model = DDP(made(lambda: nn.EmbeddingBag(50, 8, sparse=True, mode="sum", dtype=dtype)), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            draw = torch.Generator().manual_seed(100 * step + pair.rank)
            loss = model(torch.randint(0, 50, (4, 3), generator=draw)).square().mean()
            loss.backward()
            optimizer.step()
            yield loss.item()

    agree(pair, run(pair.tutti), run(pair.gloo))


def test_two_models_in_one_step(world: World) -> None:
    """A generator and a critic, as GANs have them; each with its group."""
    pair = world.pair()

    def run(group: dist.ProcessGroup) -> Iterator[float]:
        dtype = float_type(pair)
        maker = DDP(made(lambda: nn.Linear(WIDTH, WIDTH, dtype=dtype)), process_group=group)
        critic = DDP(made(lambda: nn.Linear(WIDTH, 1, dtype=dtype)), process_group=group)
        for step in range(STEPS):
            loss = F.softplus(critic(maker(rows(pair.rank, step, 4, WIDTH, dtype=dtype)))).mean()
            loss.backward()
            with torch.no_grad():
                for parameter in [*maker.parameters(), *critic.parameters()]:
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
            yield loss.item()

    agree(pair, run(pair.tutti), run(pair.gloo))


def test_logging_data(world: World) -> None:
    pair = world.pair()
    model = DDP(made(lambda: nn.Linear(4, 4)), process_group=pair.tutti)
    model(torch.ones(1, 4)).sum().backward()
    data = model._get_ddp_logging_data()
    assert data["world_size"] == pair.size
