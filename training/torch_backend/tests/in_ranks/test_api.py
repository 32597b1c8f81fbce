"""tutti_torch's own functions."""
import json

import pytest
import torch
import torch.distributed as dist

from support.groups import TIMEOUT, World
from support.launch import BACKEND

pytestmark = pytest.mark.skipif(BACKEND != "tutti", reason="these are Tutti's")


def test_info(world: World) -> None:
    import tutti_torch
    info = tutti_torch.info()
    assert torch.__version__ in json.dumps(info)
    assert set(info) >= {"version", "torch", "built_for_torch"}


def test_explain(world: World) -> None:
    """What the last call did, of the default group and of a named one."""
    import tutti_torch
    pair = world.pair()
    dist.all_reduce(torch.ones(1000), group=pair.tutti)
    assert str(tutti_torch.explain()) == str(tutti_torch.explain(pair.tutti))
    assert "all_reduce" in str(tutti_torch.explain(pair.tutti)) or "shot" in str(tutti_torch.explain(pair.tutti))


def test_groups_are_named_with_the_jobs_ranks(world: World) -> None:
    """In errors, and in the flight recorder, which names ranks as they do."""
    import tutti_torch
    text = tutti_torch.flight_recorder(world.pair().tutti)
    assert f"rank {world.rank} (host " in text and "of group" not in text
    last = world.size - 1
    pair = world.pair(last)
    if world.rank == last:
        name = pair.tutti.group_name
        assert f"rank 0 of group '{name}' (job rank {last})" in tutti_torch.flight_recorder(pair.tutti)
    if world.size > 2:
        pair = world.pair(1, 2)
        if pair.rank >= 0:
            text = tutti_torch.flight_recorder(pair.tutti)
            assert f"rank {pair.rank} of group '{pair.tutti.group_name}' (job rank {world.rank}, host " in text


def test_flight_recorder(world: World) -> None:
    """The last calls of this rank, with their sizes and types, for people and for programs."""
    import tutti_torch
    pair = world.pair()
    dist.all_reduce(torch.ones(1234), group=pair.tutti)
    dist.broadcast(torch.ones(77, dtype=torch.float64), 0, group=pair.tutti)
    text = tutti_torch.flight_recorder(pair.tutti)
    assert "all_reduce" in text and "1234" in text and "broadcast" in text and "77" in text
    json.loads(tutti_torch.flight_recorder(pair.tutti, json=True))


def test_monitored_barrier(world: World) -> None:
    import tutti_torch
    pair = world.pair()
    tutti_torch.monitored_barrier()
    tutti_torch.monitored_barrier(pair.tutti, TIMEOUT, wait_all_ranks=True)


def test_memory(world: World) -> None:
    import tutti_torch
    pair = world.pair()
    dist.all_reduce(torch.ones(1000), group=pair.tutti)
    assert tutti_torch.memory(pair.tutti)["scratch"] > 0


def test_wrong_groups_are_refused(world: World) -> None:
    import tutti_torch
    pair = world.pair()
    for function in (tutti_torch.explain, tutti_torch.flight_recorder, tutti_torch.abort):
        with pytest.raises((TypeError, ValueError)) as error:
            function(pair.gloo)
        assert "tutti" in str(error.value)
    others = dist.new_group([0], backend=BACKEND)
    if world.rank != 0:
        with pytest.raises(ValueError, match="expected a group of which this rank is a member"):
            tutti_torch.memory(others)
    dist.all_reduce(torch.ones(1), group=pair.tutti)


def test_registered_memory(world: World) -> None:
    """The allocator hook: a tensor in memory that the other ranks reach without a copy. It may outlive its group."""
    pair = world.pair()
    backend = pair.tutti._get_backend(torch.device("cpu"))
    if not backend.supports_tensor_alloc(torch.device("cpu")):
        pytest.skip("this torch asks for no memory on the CPU")
    x = backend.allocate_tensor(100_003, dtype=torch.float32, device=torch.device("cpu"))
    x.fill_(pair.rank + 1)
    dist.all_reduce(x, group=pair.tutti)
    assert x.eq(sum(range(pair.size + 1))).all()
    group = dist.new_group(list(range(pair.size)), backend=BACKEND)
    assert group
    y = group._get_backend(torch.device("cpu")).allocate_tensor(1000, dtype=torch.int64, device=torch.device("cpu"))
    dist.destroy_process_group(group)
    del group
    y.fill_(7)
    assert y.sum() == 7000
