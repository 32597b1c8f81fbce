"""What ten thousand calls leave behind, and what the profiler calls them."""
import gc
import resource

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from support.groups import World, two_ranks_show_it
from support.launch import BACKEND

MIB = 1 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@two_ranks_show_it
def test_ten_thousand_calls_leave_nothing(world: World) -> None:
    pair = world.pair()
    x, whole = torch.ones(256), torch.empty(256 * pair.size)
    parts = list(whole.chunk(pair.size))

    def calls(count: int) -> None:
        for number in range(count):
            dist.all_reduce(x.fill_(1), group=pair.tutti)
            dist.all_gather(parts, x, group=pair.tutti)
            work = dist.reduce_scatter_tensor(x, whole, group=pair.tutti, async_op=True)
            assert work is not None
            if number % 2:
                work.get_future().then(lambda future: None)
            work.wait()
            dist.broadcast(x, 0, group=pair.tutti)

    calls(500)
    gc.collect()
    before = resident_bytes()
    calls(2500)
    gc.collect()
    # 10,000 calls that kept 64 B each would show as 0.6 MiB and a tensor's 1 KiB as 10 MiB; the allocator's own noise
    # is below 2 MiB.
    assert resident_bytes() - before < 2 * MIB


@two_ranks_show_it
def test_groups_give_their_memory_back(world: World) -> None:
    pair = world.pair()

    def once() -> None:
        group = dist.new_group(list(range(world.size)), backend=BACKEND)
        x = torch.ones(4 * MIB // 4)
        for _ in range(2):
            dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        gc.collect()

    def settled_bytes() -> int:
        # A rank's memory of a group goes when the others have destroyed theirs, and the next group is made.
        dist.barrier(group=pair.gloo)
        group = dist.new_group(list(range(world.size)), backend=BACKEND)
        dist.barrier(group=group)
        resident = resident_bytes()
        dist.destroy_process_group(group)
        gc.collect()
        return resident

    for _ in range(3):
        once()
    before = settled_bytes()
    for _ in range(10):
        once()
    # A communicator's scratch is some MiB; ten of them would be more.
    assert settled_bytes() - before < 16 * MIB


def test_profiler_names(world: World) -> None:
    pair = world.pair()
    x, whole = torch.ones(8), torch.ones(8 * pair.size)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(x, group=pair.tutti)
        dist.broadcast(x, 0, group=pair.tutti)
        dist.all_gather_into_tensor(whole, x, group=pair.tutti)
        dist.reduce_scatter_tensor(x, whole, group=pair.tutti)
        work = dist.all_reduce(x, group=pair.tutti, async_op=True)
        assert work is not None
        work.wait()
    names = {event.key for event in profiler.key_averages()}
    assert "c10d::allreduce_" in names
    if BACKEND == "gloo":
        pytest.skip("the rest are our names")
    for call in ("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor"):
        assert f"tutti:{call}" in names, sorted(name for name in names if ":" in name)
