"""torch.distributed.pipelining: nothing is added up between ranks, so every schedule gives Gloo's bits."""
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B,
                                          ScheduleInterleavedZeroBubble, ScheduleLoopedBFS)

from support.groups import Pair, World
from support.models import STEPS, WIDTH, Block, agree, made, rows

MICRO_BATCHES = 8  # a multiple of every number of ranks here but 3
ROWS_EACH = 2


def stages(pair: Pair, group: dist.ProcessGroup, each: int) -> list[PipelineStage]:
    layers = made(lambda: nn.Sequential(*(Block(WIDTH, torch.float32) for _ in range(pair.size * each))))
    numbers = [pair.rank + pair.size * turn for turn in range(each)]
    return [PipelineStage(layers[number], number, pair.size * each, torch.device("cpu"), group=group)
            for number in numbers]


def run(pair: Pair, group: dist.ProcessGroup, schedule: type, each: int) -> Iterator[float]:
    mine = stages(pair, group, each)
    micro_batches = MICRO_BATCHES if pair.size != 3 else 6
    pipeline = schedule(mine if each > 1 else mine[0], micro_batches, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD([parameter for stage in mine for parameter in stage.submod.parameters()], lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        target = rows(100, step, micro_batches * ROWS_EACH, WIDTH)
        arguments = [rows(0, step, micro_batches * ROWS_EACH, WIDTH)] if pair.rank == 0 else []
        if pair.rank == pair.size - 1:
            pipeline.step(*arguments, target=target, losses=losses)
        else:
            pipeline.step(*arguments)
        optimizer.step()
        yield from (loss.item() for loss in losses)
    for stage in mine:
        for parameter in stage.submod.parameters():
            yield parameter.double().sum().item()


@pytest.mark.parametrize("schedule, each", [(ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2),
                                            (ScheduleLoopedBFS, 2), (ScheduleInterleavedZeroBubble, 2)],
                         ids=lambda value: value.__name__ if isinstance(value, type) else f"{value}")
def test_schedule(world: World, schedule: type, each: int) -> None:
    pair = world.pair()
    agree(pair, run(pair, pair.tutti, schedule, each), run(pair, pair.gloo, schedule, each), exact=True)
