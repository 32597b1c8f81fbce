"""torch.distributed.checkpoint: saved by N ranks, loaded again, also with other shards."""
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from support.groups import Pair, World
from support.launch import BACKEND
from support.models import Stack, made, token_loss


@pytest.fixture
def folder(world: World) -> Iterator[str]:
    """One folder for all ranks; rank 0 makes it and takes it away."""
    pair = world.pair()
    names = [tempfile.mkdtemp(prefix="tutti_checkpoint_") if pair.rank == 0 else ""]
    dist.broadcast_object_list(names, src=0, group=pair.gloo)
    yield names[0]
    dist.barrier(group=pair.gloo)
    if pair.rank == 0:
        shutil.rmtree(names[0])


def training(pair: Pair, seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    mesh = DeviceMesh.from_group(pair.tutti, "cpu")
    model = made(Stack, seed)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def step(pair: Pair, model: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    optimizer.zero_grad()
    loss = token_loss(model, pair.rank, number)
    loss.backward()
    optimizer.step()
    return loss.item()


def test_training_goes_on_where_it_was(world: World, folder: str) -> None:
    pair = world.pair()
    model, optimizer = training(pair, seed=1)
    for number in range(2):
        step(pair, model, optimizer, number)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    checkpoint.save(states, checkpoint_id=folder, process_group=pair.tutti)
    expected = [step(pair, model, optimizer, number) for number in range(2, 5)]
    assert (pathlib.Path(folder) / ".metadata").exists() and len(os.listdir(folder)) > pair.size

    other, its_optimizer = training(pair, seed=2)
    states = dict(zip(("model", "optimizer"), get_state_dict(other, its_optimizer)))
    checkpoint.load(states, checkpoint_id=folder, process_group=pair.tutti)
    set_state_dict(other, its_optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    assert [step(pair, other, its_optimizer, number) for number in range(2, 5)] == expected


def test_other_shards(world: World, folder: str) -> None:
    """Saved in rows, loaded in columns and whole."""
    pair = world.pair()
    mesh = DeviceMesh.from_group(pair.tutti, "cpu")
    whole = torch.arange(60.0 * pair.size).view(10, -1)
    checkpoint.save({"x": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder, process_group=pair.tutti)
    for placement in (Shard(1), Replicate()):
        state = {"x": distribute_tensor(torch.zeros_like(whole), mesh, [placement])}
        checkpoint.load(state, checkpoint_id=folder, process_group=pair.tutti)
        assert isinstance(state["x"], DTensor) and torch.equal(state["x"].full_tensor(), whole)


def test_asynchronous_save(world: World, folder: str) -> None:
    """Written by a thread while training goes on; its group is one of its own."""
    pair = world.pair()
    own = dist.new_group(list(range(pair.size)), backend=BACKEND)
    model, optimizer = training(pair, seed=1)
    step(pair, model, optimizer, 0)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    saved = checkpoint.async_save(states, checkpoint_id=folder, process_group=own)
    step(pair, model, optimizer, 1)
    saved.result()
    assert (pathlib.Path(folder) / ".metadata").exists()
    dist.destroy_process_group(own)
