"""Groups: of some ranks, overlapping, by mesh, by split; made, destroyed and made again."""
import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from support.groups import TIMEOUT, World, two_ranks_show_it
from support.launch import BACKEND
from support.torch_versions import BARRIER_TAKES_A_TIMEOUT

SOON = timedelta(seconds=1)
TIMED_OUT, COMMUNICATION_ERROR = 1, 2  # c10d::ErrorType


def total(group: dist.ProcessGroup, value: float) -> float:
    x = torch.tensor([value])
    dist.all_reduce(x, group=group)
    return x.item()


def test_name(world: World) -> None:
    pair = world.pair()
    assert dist.get_backend(pair.tutti) == BACKEND
    assert pair.tutti.size() == world.size and pair.tutti.rank() == world.rank
    assert pair.tutti._get_backend(torch.device("cpu")).name() == BACKEND


def test_bound_to_a_device(world: World) -> None:
    """What torch calls where the default group has a device_id, and new_group() is called then."""
    pair = world.pair()
    backend = pair.tutti._get_backend(torch.device("cpu"))
    backend.eager_connect_single_device(torch.device("cpu"))  # nothing to connect
    assert backend.supports_splitting
    backend.perform_nocolor_split(torch.device("cpu"))
    assert total(pair.tutti, world.rank) == sum(range(world.size))


def test_every_subset(world: World) -> None:
    for mask in range(1, 1 << world.size):
        members = [rank for rank in range(world.size) if mask >> rank & 1]
        pair = world.pair(*members)
        if pair.rank >= 0:
            assert total(pair.tutti, world.rank) == sum(members)


def test_a_group_of_one(world: World) -> None:
    for rank in range(world.size):
        pair = world.pair(rank)
        if pair.rank == 0:
            assert total(pair.tutti, 3) == 3
            outputs = [torch.empty(2)]
            dist.all_gather(outputs, torch.ones(2), group=pair.tutti)
            assert outputs[0].tolist() == [1, 1]
            dist.barrier(group=pair.tutti)


def test_groups_at_the_same_time(world: World) -> None:
    """Overlapping groups with calls under way in all of them."""
    pairs = [world.pair(rank, (rank + 1) % world.size) if rank + 1 < world.size else world.pair()
             for rank in range(world.size)]
    held = []
    for pair in pairs:
        if pair.rank >= 0:
            x = torch.full((1000,), world.rank + 1.0)
            held.append((pair, x, dist.all_reduce(x, group=pair.tutti, async_op=True)))
    for pair, x, work in reversed(held):
        assert work is not None
        work.wait()
        assert x.eq(sum(rank + 1 for rank in pair.ranks)).all()


@two_ranks_show_it
def test_many_groups(world: World) -> None:
    """Made, used, destroyed: files and memory go back."""
    world.pair()

    def once() -> None:
        group = dist.new_group(list(range(world.size)), backend=BACKEND)
        assert group and total(group, 1) == world.size
        dist.destroy_process_group(group)
        del group
        gc.collect()

    once()
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(20):
        once()
    assert len(os.listdir("/proc/self/fd")) <= files + 4
    assert threading.active_count() <= threads + 1


def test_p1_ranks_that_name_different_members(world: World) -> None:
    """Made side by side they share a name in the store: no rank may be added to another one's group."""
    if BACKEND == "gloo" or world.size != 4:
        pytest.skip("four ranks of this backend")
    world.pair()
    mine = [0, 3] if world.rank in (0, 3) else [1, 2]
    group = dist.new_group(mine, backend=BACKEND, timeout=timedelta(seconds=30))
    assert group and total(group, world.rank) == 3


def test_p2_groups_that_ranks_have_made_unequally_often(world: World) -> None:
    """Rank 0 keeps a group that rank 1 has given up, so that torch calls the next one of the same ranks by two names."""
    if BACKEND == "gloo" or world.size != 2:
        pytest.skip("two ranks of this backend")
    world.pair()
    kept = dist.new_group([0, 1], backend=BACKEND, use_local_synchronization=True)
    if world.rank == 1:
        dist.destroy_process_group(kept)
    error = r"rank 1 of the group \[0, 1\] waited \d+ ms and timed out" if world.rank == 1 else "rank 1"
    with pytest.raises(dist.DistBackendError, match=error):
        dist.new_group([0, 1], backend=BACKEND, use_local_synchronization=True, timeout=timedelta(seconds=2))
    world.renew()


def test_p4_a_group_without_a_timeout_has_the_default_groups(world: World) -> None:
    if BACKEND == "gloo":
        pytest.skip("of this backend")
    world.close()
    store = dist.PrefixStore("p4", world._store)
    dist.init_process_group(BACKEND, store=store, rank=world.rank, world_size=world.size, timeout=timedelta(seconds=2))
    group = dist.new_group(list(range(world.size)), backend=BACKEND)
    if world.rank == 0:
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            dist.all_reduce(torch.ones(1), group=group)
        store.set("told", "")
    store.wait(["told"], TIMEOUT)
    dist.destroy_process_group()


def test_p5_a_tensor_twice_in_one_list(world: World) -> None:
    pair = world.pair()
    t = torch.ones(4)
    with pytest.raises(ValueError, match="tensors 0 and 1 of the list overlap") if BACKEND != "gloo" else nullcontext():
        dist.all_reduce_coalesced([t, t], group=pair.tutti)
    parts = [t[:2], t[2:]]
    t.fill_(1)
    dist.all_reduce_coalesced(parts, group=pair.tutti)
    assert t.tolist() == [world.size] * 4


def test_destroy_and_init_again(world: World) -> None:
    """With one store for all rounds, as torchrun's ranks have it."""
    if BACKEND == "gloo":
        pytest.skip("Gloo takes the addresses of the round before")
    world.close()
    for number in range(5):
        dist.init_process_group(BACKEND, timeout=TIMEOUT)
        assert dist.group.WORLD and total(dist.group.WORLD, number) == number * world.size
        group = dist.new_group([0, world.size - 1], backend=BACKEND)
        if world.rank in (0, world.size - 1):
            assert group and total(group, 1) == 2
        dist.destroy_process_group()
        assert not dist.is_initialized()


@two_ranks_show_it
@pytest.mark.parametrize("backends", [f"cpu:{BACKEND},cuda:{BACKEND}", f"cpu:{BACKEND},cuda:gloo",
                                      f"cpu:gloo,cuda:{BACKEND}", f"cpu:{BACKEND},meta:gloo",
                                      f"cuda:gloo,cpu:{BACKEND}"])
def test_several_devices_in_one_group(world: World, backends: str) -> None:
    """Each device's calls go to its backend; here only the CPU's can be made."""
    world.close()
    dist.init_process_group(backends, store=dist.PrefixStore(f"devices/{backends}", world._store), rank=world.rank,
                            world_size=world.size)
    assert dist.group.WORLD and total(dist.group.WORLD, 1) == world.size
    by_device = dict(pair.split(":") for pair in backends.split(","))
    for device, backend in by_device.items():
        assert dist.group.WORLD._get_backend(torch.device(device)).name() == backend
    got: list[object] = [None] * world.size
    dist.all_gather_object(got, world.rank)
    assert got == list(range(world.size))
    dist.barrier()
    inner = dist.new_group([0, world.size - 1])  # of the same backends
    if world.rank in (0, world.size - 1):
        assert inner and total(inner, 1) == 2
    if BACKEND == "tutti":
        import tutti_torch
        dist.all_reduce(torch.ones(1))
        assert ("all_reduce" in tutti_torch.flight_recorder()) == (by_device["cpu"] == BACKEND)
    dist.destroy_process_group()


def test_mesh_of_two_dimensions(world: World) -> None:
    if world.size % 2:
        pytest.skip("needs an even number of ranks")
    world.pair()
    mesh = init_device_mesh("cpu", (world.size // 2, 2), mesh_dim_names=("replica", "shard"))
    row, column = mesh.get_coordinate() or [0, 0]
    assert total(mesh.get_group("shard"), world.rank) == 2 * row + 2 * row + 1
    assert total(mesh.get_group("replica"), world.rank) == sum(2 * other + column for other in range(world.size // 2))
    assert total(mesh["replica", "shard"]._flatten().get_group(), 1) == world.size


def test_mesh_of_three_dimensions(world: World) -> None:
    if world.size != 4:
        pytest.skip("needs 4 ranks")
    world.pair()
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "pp", "tp"))
    assert total(mesh.get_group("dp"), world.rank) == [2, 4, 2, 4][world.rank]
    assert total(mesh.get_group("pp"), world.rank) == world.rank
    assert total(mesh.get_group("tp"), world.rank) == [1, 1, 5, 5][world.rank]


def test_mesh_names_the_backend(world: World) -> None:
    """A mesh of another backend beside the default group, as FSDP's tests here have it."""
    world.pair()
    mesh = init_device_mesh("cpu", (world.size,), backend_override={0: "gloo"})
    assert dist.get_backend(mesh.get_group()) == "gloo" and total(mesh.get_group(), 1) == world.size


def test_subgroups(world: World) -> None:
    if world.size % 2:
        pytest.skip("needs an even number of ranks")
    world.pair()
    mine, all_of_them = dist.new_subgroups(2, backend=BACKEND)
    assert mine and len(all_of_them) == world.size // 2
    assert total(mine, world.rank) == 2 * (world.rank // 2 * 2) + 1


def test_split(world: World) -> None:
    """dist.split_group asks for a device other than the CPU, so this is what it calls."""
    pair = world.pair()
    if BACKEND == "gloo":
        pytest.skip("Gloo has no split of this kind")
    assert pair.tutti._get_backend(torch.device("cpu")).supports_splitting
    half = world.size // 2
    ranks = list(range(half)) if world.rank < half else list(range(half, world.size))
    part = pair.tutti.split_group(ranks, TIMEOUT, group_name=f"half{world.rank < half}", group_desc="half")
    assert part.size() == len(ranks) and part.rank() == ranks.index(world.rank)
    x = torch.tensor([float(world.rank)])
    part.allreduce([x]).wait()
    assert x.item() == sum(ranks)
    import tutti_torch
    text = tutti_torch.flight_recorder(part)  # names ranks as errors do
    assert f"rank {part.rank()} of group 'half" in text and f"(job rank {world.rank}, " in text
    part.shutdown()


def test_sequence_numbers(world: World) -> None:
    """They count the calls, the same on all ranks: TORCH_DISTRIBUTED_DEBUG's checks compare them."""
    pair = world.pair()
    backend = pair.tutti._get_backend(torch.device("cpu"))  # a group of a backend that is a plug-in passes none on
    first = backend._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(1), group=pair.tutti)
    last = backend._get_sequence_number_for_group()
    assert last == first + 3
    if pair.rank == 0:  # messages are not counted: only two ranks know of one
        dist.send(torch.ones(1), 1, group=pair.tutti)
    elif pair.rank == 1:
        dist.recv(torch.ones(1), 0, group=pair.tutti)
    got: list[object] = [None] * world.size
    dist.all_gather_object(got, backend._get_sequence_number_for_group(), group=pair.gloo)
    assert got == [last] * world.size


def test_monitored_barrier(world: World) -> None:
    """dist.monitored_barrier itself insists on Gloo, so this is what it calls."""
    pair = world.pair()
    pair.tutti.monitored_barrier(TIMEOUT, wait_all_ranks=True)
    pair.tutti.monitored_barrier(TIMEOUT)


def refused(group: dist.ProcessGroup, call: Callable[[], object]) -> str:
    """What the call says, which must fail long before the group's deadline."""
    begin = time.monotonic()
    with pytest.raises(dist.DistBackendError) as error:
        call()
    assert time.monotonic() - begin < TIMEOUT.total_seconds() / 2
    return str(error.value)


WAYS_TO_BE_LATE: dict[str, Callable[[dist.ProcessGroup], object]] = {
    "changed": lambda group: (group.set_timeout(SOON), dist.all_reduce(torch.ones(1), group=group)),
    "changed_for_messages": lambda group: (group.set_timeout(SOON), dist.recv(torch.ones(1), None, group=group)),
    "changed_under_way": lambda group: (
        work := dist.all_reduce(torch.ones(1), group=group, async_op=True), group.set_timeout(SOON), work.wait()),
    "of_a_barrier": lambda group: dist.barrier(group, timeout=SOON),
    "of_a_barrier_started": lambda group: dist.barrier(group, async_op=True, timeout=SOON).wait(),
    "of_a_barrier_behind_another_call": lambda group: (
        dist.all_reduce(torch.ones(1), group=group, async_op=True), dist.barrier(group, timeout=SOON)),
    "of_an_all_reduce": lambda group: group.allreduce(torch.ones(1), dist.ReduceOp.SUM, SOON).wait(),
}


@two_ranks_show_it
@pytest.mark.parametrize("way", WAYS_TO_BE_LATE)
def test_timeouts(world: World, way: str) -> None:
    """A group's, changed later on, and those of single calls. All ranks but rank 0 do not come, and are told."""
    pair = world.pair()
    if BACKEND == "gloo":
        pytest.skip("Gloo has its own")
    if "barrier" in way and not BARRIER_TAKES_A_TIMEOUT:
        pytest.skip("this PyTorch's barrier takes no timeout")
    from tutti_torch import _C
    group = dist.new_group(list(range(world.size)), backend=BACKEND, timeout=TIMEOUT)
    assert group and total(group, 1) == pair.size
    dist.barrier(group=pair.gloo)  # a rank may be done with a call before others are
    if world.rank == 0:
        refused(group, lambda: WAYS_TO_BE_LATE[way](group))
        assert _C.error_state(group._get_backend(torch.device("cpu"))) in (TIMED_OUT, COMMUNICATION_ERROR)
    dist.barrier(group=pair.gloo)
    if world.rank != 0:
        refused(group, lambda: (dist.recv(torch.ones(1), 0, group=group) if way == "changed_for_messages" else
                                dist.all_reduce(torch.ones(1), group=group)))
    dist.destroy_process_group(group)


def test_a_timeout_of_one_call_is_of_that_call(world: World) -> None:
    """What follows has the group's, which is shorter."""
    pair = world.pair()
    if BACKEND == "gloo":
        pytest.skip("Gloo has its own")
    if not BARRIER_TAKES_A_TIMEOUT:
        pytest.skip("this PyTorch's barrier takes no timeout")
    group = dist.new_group(list(range(world.size)), backend=BACKEND, timeout=TIMEOUT)
    assert group
    group.set_timeout(SOON)
    for async_op in (False, True):
        work = dist.barrier(group, async_op, timeout=TIMEOUT)
        assert work is None or work.wait()
    dist.barrier(group=pair.gloo)
    if world.rank == 0:
        refused(group, lambda: dist.barrier(group))
    dist.barrier(group=pair.gloo)
    dist.destroy_process_group(group)


def test_abort_by_torch(world: World) -> None:
    """As torch.distributed's own abort of a group calls it: all ranks' calls end, and the group says that it failed. The last
    rank stays away, so that no call can be done before the abort."""
    pair = world.pair()
    if BACKEND == "gloo":
        pytest.skip("Gloo has no such abort")
    from tutti_torch import _C
    group = dist.new_group(list(range(world.size)), backend=BACKEND, timeout=TIMEOUT)
    assert group and total(group, 1) == pair.size
    dist.barrier(group=pair.gloo)
    backend = group._get_backend(torch.device("cpu"))
    assert _C.error_state(backend) == 0
    if world.rank == 0:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        assert work is not None
        group.abort()
        refused(group, work.wait)
    elif world.rank != world.size - 1:
        refused(group, lambda: dist.all_reduce(torch.ones(1), group=group))
    dist.barrier(group=pair.gloo)
    refused(group, lambda: dist.all_reduce(torch.ones(1), group=group))
    assert _C.error_state(backend) == COMMUNICATION_ERROR
    dist.destroy_process_group(group)
    assert total(pair.tutti, 1) == pair.size  # another group is as it was


def test_a_group_may_go_while_calls_are_under_way(world: World) -> None:
    """Aborted and dropped, with tensors that only the calls still hold: who takes the group down has Python's lock, and
    a caller that lets such a tensor go wants it."""
    pair = world.pair()
    if BACKEND == "gloo":
        pytest.skip("Gloo has no such abort")
    for _ in range(5):
        group = dist.new_group(list(range(world.size)), backend=BACKEND, timeout=TIMEOUT)
        assert group and total(group, 1) == pair.size
        dist.barrier(group=pair.gloo)  # a rank may be done with a call before others are
        if world.rank == 0:
            for _ in range(20):
                dist.all_reduce(torch.ones(100), group=group, async_op=True)
                dist.irecv(torch.ones(100), 1, group=group, tag=3)
        dist.distributed_c10d._abort_process_group(group)
        del group
        gc.collect()
    assert total(pair.tutti, 1) == pair.size
