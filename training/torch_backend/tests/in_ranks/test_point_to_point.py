"""Messages between two ranks: every type and layout, tags, any source, both directions at once, batches."""
import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from support.groups import Pair, World
from support.launch import BACKEND
from support.values import DTYPES, LAYOUTS, make, lay, same

SHAPES = [(), (0,), (1,), (7,), (3, 5), (100_003,)]
MIB = 1 << 20


def neighbours(pair: Pair) -> tuple[int, int]:
    return (pair.rank + 1) % pair.size, (pair.rank - 1) % pair.size


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_send_and_receive(world: World, dtype: torch.dtype) -> None:
    pair = world.pair()
    for number, shape in enumerate(SHAPES):
        for source in range(pair.size):
            target = (source + 1) % pair.size
            wanted = make(("p2p", number), source, shape, dtype)
            layout = LAYOUTS[number % len(LAYOUTS)] if BACKEND != "gloo" else "contiguous"
            if pair.rank == source:
                dist.send(lay(wanted, layout), target, group=pair.tutti)
            elif pair.rank == target:
                space = lay(torch.zeros(shape, dtype=torch.uint8).to(dtype), layout)
                assert dist.recv(space, source, group=pair.tutti) == source
                same([space], [wanted], exact=True, what=f"{dtype}, {shape}, {layout}")


def test_tags_are_told_apart(world: World) -> None:
    """A receive takes the first message of its tag, though others came before."""
    pair = world.pair()
    if pair.rank == 0:
        works = [dist.isend(torch.full((count,), float(tag)), 1, group=pair.tutti, tag=tag)
                 for tag, count in ((3, 4), (1, 5000), (2, 1), (1, 5000))]
        for work in works:
            assert work is not None
            work.wait()
    elif pair.rank == 1:
        for tag, count in ((1, 5000), (2, 1), (1, 5000), (3, 4)):
            space = torch.empty(count)
            dist.recv(space, 0, group=pair.tutti, tag=tag)
            assert space.eq(tag).all()


def test_any_source(world: World) -> None:
    """Rank 0 takes what comes first, and is told from whom; the order of each sender is kept."""
    pair = world.pair()
    each = 5
    if pair.rank == 0:
        seen: dict[int, int] = dict.fromkeys(range(1, pair.size), 0)
        for _ in range(each * (pair.size - 1)):
            space = torch.empty(3, dtype=torch.int64)
            source = dist.recv(space, None, group=pair.tutti)
            assert space.tolist() == [source, seen[source], 42]
            seen[source] += 1
        assert set(seen.values()) == {each}
    else:
        for number in range(each):
            dist.send(torch.tensor([pair.rank, number, 42]), 0, group=pair.tutti)


def test_any_source_of_one_tag(world: World) -> None:
    pair = world.pair()
    tag = 9
    if pair.rank == 0:
        sources = {dist.recv(torch.empty(2), None, group=pair.tutti, tag=tag) for _ in range(1, pair.size)}
        assert sources == set(range(1, pair.size))
        for source in range(1, pair.size):
            space = torch.empty(1)
            dist.recv(space, source, group=pair.tutti)
            assert space.item() == source
    else:
        other = dist.isend(torch.full((1,), float(pair.rank)), 0, group=pair.tutti)
        dist.send(torch.ones(2), 0, group=pair.tutti, tag=tag)
        assert other is not None
        other.wait()


@pytest.mark.parametrize("count", [1, 1000, MIB])
def test_all_ranks_send_first(world: World, count: int) -> None:
    """Sends that are asynchronous never wait for each other, however large."""
    pair = world.pair()
    after, before = neighbours(pair)
    x = torch.full((count,), float(pair.rank))
    send = dist.isend(x, after, group=pair.tutti)
    space = torch.empty(count)
    dist.recv(space, before, group=pair.tutti)
    assert send is not None
    send.wait()
    assert space.eq(before).all()


def test_a_waiting_receive_delays_no_rank(world: World) -> None:
    """Rank 0 waits for a message that rank 1 sends only after having got one that rank 0 sends later."""
    pair = world.pair()
    if pair.rank == 0:
        space = torch.empty(4)
        receive = dist.irecv(space, 1, group=pair.tutti)
        dist.send(torch.full((4,), 5.0), 1, group=pair.tutti)
        assert receive is not None
        receive.wait()
        assert space.eq(6).all()
    elif pair.rank == 1:
        space = torch.empty(4)
        dist.recv(space, 0, group=pair.tutti)
        dist.send(space + 1, 0, group=pair.tutti)


def test_batch_ring(world: World) -> None:
    pair = world.pair()
    after, before = neighbours(pair)
    for count in (1, 1000, MIB):
        x, space = torch.full((count,), float(pair.rank)), torch.empty(count)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, after, pair.tutti),
                                        dist.P2POp(dist.irecv, space, before, pair.tutti)])
        for work in works:
            work.wait()
        assert space.eq(before).all()


def test_batch_of_many(world: World) -> None:
    """All to all by messages, several between each two ranks: the i-th receive gets the i-th send."""
    pair = world.pair()
    each = 4
    operations, outcomes = [], []
    for peer in range(pair.size):
        if peer == pair.rank:
            continue
        for number in range(each):
            x = make(("many", peer, number), pair.rank, (50,), torch.float32)
            operations.append(dist.P2POp(dist.isend, x, peer, pair.tutti))
            space = torch.empty(50)
            operations.append(dist.P2POp(dist.irecv, space, peer, pair.tutti))
            outcomes.append((space, make(("many", pair.rank, number), peer, (50,), torch.float32)))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for space, wanted in outcomes:
        same([space], [wanted], exact=True, what="batch")


def test_batch_without_some_ranks(world: World) -> None:
    """As a pipeline does: neighbours talk, the others do not take part."""
    pair = world.pair()
    space = torch.empty(10)
    if pair.rank == 0:
        works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, space, 1, pair.tutti)])
    elif pair.rank == 1:
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((10,), 3.0), 0, pair.tutti)])
    else:
        works = []
    for work in works:
        work.wait()
    assert pair.rank != 0 or space.eq(3).all()


def test_to_oneself(world: World) -> None:
    pair = world.pair()
    if BACKEND == "gloo":
        pytest.skip("Gloo has no pair of a rank and itself")
    for count in (1, 100_003):
        x, space = torch.full((count,), pair.rank + 1.0), torch.empty(count)
        send = dist.isend(x, pair.rank, group=pair.tutti, tag=3)
        receive = dist.irecv(space, pair.rank, group=pair.tutti, tag=3)
        assert send is not None and receive is not None
        send.wait(), receive.wait()
        assert space.eq(pair.rank + 1).all()


def test_threads(world: World) -> None:
    """Messages of several threads, each with a tag of its own, one by one and in batches, beside collectives."""
    pair = world.pair()
    after, before = neighbours(pair)
    problems: list[BaseException] = []

    def in_turn(tag: int) -> None:
        for number in range(50):
            space = torch.empty(1 + number)
            send = dist.isend(torch.full((1 + number,), float(pair.rank + tag)), after, group=pair.tutti, tag=tag)
            assert dist.recv(space, before, group=pair.tutti, tag=tag) == before
            assert send is not None
            send.wait()
            assert space.eq(before + tag).all()

    def in_batches(tag: int) -> None:
        """Not by batch_isend_irecv, which keeps a group's open batch where the calls of all threads look for it."""
        cpu = torch.device("cpu")
        for _ in range(50):
            space = torch.empty(100)
            pair.tutti._start_coalescing(cpu)
            pair.tutti.send([torch.full((100,), float(pair.rank + tag))], after, tag)
            pair.tutti.recv([space], before, tag)
            pair.tutti._end_coalescing(cpu).wait()
            assert space.eq(before + tag).all()

    def noted(what: Callable[[int], None], tag: int) -> None:
        try:
            what(tag)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=noted, args=(what, tag))
               for tag, what in enumerate((in_turn, in_batches, in_turn, in_batches))]
    for thread in threads:
        thread.start()
    for number in range(100):
        x = torch.ones(10)
        work = dist.all_reduce(x, group=pair.tutti, async_op=number % 2 == 0)
        if work is not None:
            work.wait()
        assert x.eq(pair.size).all()
    for thread in threads:
        thread.join()
    assert not problems


def test_in_a_group(world: World) -> None:
    """Ranks are those of the world, or of the group by group_src and group_dst."""
    members = tuple(range(world.size))[-2:]  # new_group sorts them
    pair = world.pair(*members)
    space = torch.empty(2)
    if pair.rank == 0:
        dist.send(torch.tensor([1.0, 2.0]), group=pair.tutti, group_dst=1)
        assert dist.recv(space, members[1], group=pair.tutti) == members[1]
    elif pair.rank == 1:
        assert dist.recv(space, group=pair.tutti, group_src=0) == members[0]
        dist.send(space, members[0], group=pair.tutti)
    if pair.rank in (0, 1):
        assert space.tolist() == [1.0, 2.0]


def test_sizes_that_differ_are_told(world: World) -> None:
    """More is sent than the receiver has room for: an error, and no write past its end. The group is new afterwards."""
    if BACKEND == "gloo":
        pytest.skip("Gloo says nothing")
    ranks = list(range(world.size))
    world.pair()
    group = dist.new_group(ranks, backend=BACKEND)
    assert group
    if world.rank < 2:
        holder = torch.zeros(8)
        with pytest.raises(RuntimeError) as error:
            if world.rank == 0:
                dist.send(torch.ones(8), 1, group=group)
                dist.recv(torch.empty(1), 1, group=group)  # a send may be done before the receiver has looked at it
            else:
                dist.recv(holder[:4], 0, group=group)
        assert "rank" in str(error.value)
        assert holder[4:].eq(0).all()
    dist.destroy_process_group(group)


def test_object_lists(world: World) -> None:
    pair = world.pair()
    what = [{"a": 1}, "x" * 5000, None, torch.arange(3)]
    if pair.rank == 0:
        dist.send_object_list(what, dst=1, group=pair.tutti)
    elif pair.rank == 1:
        got: list[object] = [0, 0, 0, 0]
        dist.recv_object_list(got, src=0, group=pair.tutti)
        assert got[:3] == what[:3] and isinstance(got[3], torch.Tensor) and got[3].tolist() == [0, 1, 2]


def after_a_batch_that_ended_badly(pair: Pair) -> None:
    """Messages and batches go on as if it had not been."""
    other = 1 - pair.rank
    space = torch.zeros(3)
    if pair.rank == 0:
        dist.send(torch.ones(3), other, group=pair.tutti)
    else:
        dist.recv(space, other, group=pair.tutti)
        assert space.eq(1).all()
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((3,), 2.0), other, group=pair.tutti),
                                    dist.P2POp(dist.irecv, space, other, group=pair.tutti)])
    for work in works:
        work.wait()
    assert space.eq(2).all()


@pytest.mark.skipif(BACKEND != "tutti", reason="of the backend's own batches")
def test_a_refused_message_ends_its_batch(world: World) -> None:
    pair = world.pair()
    if pair.rank > 1:
        return
    operations = [dist.P2POp(dist.isend, torch.ones(3), 1 - pair.rank, group=pair.tutti),
                  dist.P2POp(dist.isend, torch.ones(3), 1 - pair.rank, group=pair.tutti, tag=-1)]
    with pytest.raises(ValueError, match="tag is -1"):
        dist.batch_isend_irecv(operations)
    after_a_batch_that_ended_badly(pair)


@pytest.mark.skipif(BACKEND != "tutti", reason="of the backend's own batches")
def test_a_batch_that_an_exception_left_open_is_told_and_ends(world: World) -> None:
    """PyTorch does not end the coalescing then: the next message of this thread is the first to notice."""
    pair = world.pair()
    if pair.rank > 1:
        return
    with pytest.raises(KeyError):
        with dist.distributed_c10d._coalescing_manager(pair.tutti, torch.device("cpu"), async_ops=True):
            dist.isend(torch.ones(3), 1 - pair.rank, group=pair.tutti)
            raise KeyError("the user's own")
    with pytest.raises(dist.DistBackendError, match="open on this thread"):
        dist.send(torch.ones(3), 1 - pair.rank, group=pair.tutti)
    after_a_batch_that_ended_badly(pair)
