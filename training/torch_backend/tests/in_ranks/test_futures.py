"""Work and Future as PyTorch means them; calls under way at the same time; coalesced calls; threads."""
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from support.groups import World
from support.launch import BACKEND


def expected(size: int) -> float:
    return float(size * (size + 1) // 2)


def test_work(world: World) -> None:
    pair = world.pair()
    x = torch.full((1000,), pair.rank + 1.0)
    work = dist.all_reduce(x, group=pair.tutti, async_op=True)
    assert work is not None
    assert work.wait()
    assert work.is_completed() and work.is_success()
    assert work.wait(timedelta(seconds=1)), "a second wait returns at once"
    assert x.eq(expected(pair.size)).all()


def test_a_wait_with_a_limit(world: World) -> None:
    """It ends without the call, which goes on."""
    pair = world.pair()
    if BACKEND == "gloo":
        pytest.skip("Gloo gives up the group")
    x = torch.full((1000,), pair.rank + 1.0)
    if pair.rank == 0:
        work = dist.all_reduce(x, group=pair.tutti, async_op=True)
        assert work is not None
        with pytest.raises(dist.DistBackendError, match="rank 0 called all_reduce.* 20 ms.* goes on"):
            work.wait(timedelta(milliseconds=20))
        assert not work.is_completed()
    dist.barrier(group=pair.gloo)
    if pair.rank != 0:
        work = dist.all_reduce(x, group=pair.tutti, async_op=True)
        assert work is not None
    assert work.wait(timedelta(seconds=60))
    assert x.eq(expected(pair.size)).all()


def test_work_is_done_without_a_wait(world: World) -> None:
    """Calls make progress in the background: wait() is not needed."""
    pair = world.pair()
    x = torch.full((1000,), pair.rank + 1.0)
    done = threading.Event()
    work = dist.all_reduce(x, group=pair.tutti, async_op=True)
    assert work is not None
    work.get_future().add_done_callback(lambda future: done.set())
    assert done.wait(60)
    assert x.eq(expected(pair.size)).all()


def test_future_holds_the_tensors(world: World) -> None:
    """A list of tensors: DDP's hooks rely on it."""
    pair = world.pair()
    x = torch.full((10,), pair.rank + 1.0)
    work = dist.all_reduce(x, group=pair.tutti, async_op=True)
    assert work is not None
    value = work.get_future().wait()
    assert isinstance(value, list) and len(value) == 1
    assert value[0].data_ptr() == x.data_ptr() and value[0].eq(expected(pair.size)).all()
    assert work.get_future().done()


def test_then(world: World) -> None:
    pair = world.pair()
    x = torch.full((10,), pair.rank + 1.0)
    work = dist.all_reduce(x, group=pair.tutti, async_op=True)
    assert work is not None
    chain = work.get_future().then(lambda future: future.value()[0] / pair.size).then(lambda future: future.value() + 1)
    assert chain.wait().eq(expected(pair.size) / pair.size + 1).all()


def test_a_callback_may_call(world: World) -> None:
    """PowerSGD starts its next collective in a callback of the first."""
    pair = world.pair()

    def again(future: torch.futures.Future) -> torch.Tensor:  # type: ignore[type-arg]
        tensor = future.value()[0]
        work = dist.all_reduce(tensor, group=pair.tutti, async_op=True)
        assert work is not None
        return work.get_future().wait()[0]

    x = torch.ones(5)
    work = dist.all_reduce(x, group=pair.tutti, async_op=True)
    assert work is not None
    assert work.get_future().then(again).wait().eq(pair.size ** 2).all()


def test_results(world: World) -> None:
    pair = world.pair()
    if BACKEND == "gloo":
        pytest.skip("Gloo keeps no results")
    x = torch.ones(3)
    work = dist.broadcast(x, 0, group=pair.tutti, async_op=True)
    assert work is not None
    work.wait()
    assert work.result()[0].data_ptr() == x.data_ptr()


def test_many_under_way(world: World) -> None:
    pair = world.pair()
    tensors = [torch.full((1 + 37 * number,), pair.rank + 1.0 + number) for number in range(100)]
    works = [dist.all_reduce(x, group=pair.tutti, async_op=True) for x in tensors]
    for work in reversed(works):
        assert work is not None
        work.wait()
    for number, x in enumerate(tensors):
        assert x.eq(expected(pair.size) + number * pair.size).all()


def test_tensors_may_go_before_the_work_is_done(world: World) -> None:
    """A caller that drops a tensor while its call is under way has dropped only a reference."""
    pair = world.pair()
    works = []
    for _ in range(50):
        outputs = [torch.empty(1000) for _ in range(pair.size)]
        works.append(dist.all_gather(outputs, torch.ones(1000), group=pair.tutti, async_op=True))
        works.append(dist.all_reduce(torch.ones(10_000), group=pair.tutti, async_op=True))
        del outputs
    for work in works:
        assert work is not None
        work.wait()


def test_works_may_go_before_they_are_done(world: World) -> None:
    pair = world.pair()
    x = torch.ones(100)
    for _ in range(20):
        dist.all_reduce(torch.ones(5000), group=pair.tutti, async_op=True)
    dist.all_reduce(x, group=pair.tutti)
    assert x.eq(pair.size).all()


def test_coalescing_manager(world: World) -> None:
    pair = world.pair()
    n = pair.size
    for async_ops in (False, True):
        tensors = [torch.full((5 + number,), pair.rank + 1.0) for number in range(4)]
        with dist._coalescing_manager(group=pair.tutti, async_ops=async_ops) as manager:
            for x in tensors:
                dist.all_reduce(x, group=pair.tutti)
        if async_ops:
            manager.wait()
        for x in tensors:
            assert x.eq(expected(n)).all()

        outputs = [torch.empty(n * (2 + number)) for number in range(3)]
        with dist._coalescing_manager(group=pair.tutti, async_ops=async_ops) as manager:
            for number, output in enumerate(outputs):
                dist.all_gather_into_tensor(output, torch.full((2 + number,), float(pair.rank)), group=pair.tutti)
        if async_ops:
            manager.wait()
        for output in outputs:
            assert output.view(n, -1)[:, 0].tolist() == list(range(n))

        outputs = [torch.empty(2 + number) for number in range(3)]
        with dist._coalescing_manager(group=pair.tutti, async_ops=async_ops) as manager:
            for number, output in enumerate(outputs):
                dist.reduce_scatter_tensor(output, torch.full((n * (2 + number),), pair.rank + 1.0), group=pair.tutti)
        if async_ops:
            manager.wait()
        for output in outputs:
            assert output.eq(expected(n)).all()


def test_coalescing_with_a_device(world: World) -> None:
    """The older form, in which each call goes to the backend between start and end."""
    pair = world.pair()
    if BACKEND == "gloo":
        pytest.skip("Gloo has it not")
    tensors = [torch.full((5,), pair.rank + 1.0) for _ in range(3)]
    with dist._coalescing_manager(group=pair.tutti, device=torch.device("cpu"), async_ops=True) as manager:
        for x in tensors:
            dist.broadcast(x, 0, group=pair.tutti)
    manager.wait()
    for x in tensors:
        assert x.eq(1).all()


def test_two_threads_with_a_group_each(world: World) -> None:
    world.pair()
    groups = [dist.new_group(list(range(world.size)), backend=BACKEND) for _ in range(2)]
    problems: list[BaseException] = []

    def work(group: dist.ProcessGroup, number: int) -> None:
        try:
            for count in range(1, 200):
                x = torch.full((count,), float(number))
                dist.all_reduce(x, group=group)
                assert x.eq(number * world.size).all()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(group, number)) for number, group in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    for group in groups:
        dist.destroy_process_group(group)


def test_two_threads_with_one_group(world: World) -> None:
    """The main thread and autograd's call the same group, in an order that all ranks share."""
    pair = world.pair()
    for number in range(50):
        x = torch.full((10,), float(number))
        thread = threading.Thread(target=lambda: dist.all_reduce(x, group=pair.tutti))
        thread.start()
        thread.join()
        dist.all_reduce(x, group=pair.tutti)
        assert x.eq(number * pair.size ** 2).all()
