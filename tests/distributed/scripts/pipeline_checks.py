# SPDX-License-Identifier: Apache-2.0
"""Pipelines with several stages per rank, stages of different sizes, and schedules that split the backward pass."""

import copy
from itertools import pairwise

import torch
import torch.distributed as dist
from steps import Alone, on_device, train
from together import DEVICE, RANK, RANKS, on
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import ScheduleDualPipeV

WIDTH, LAYERS, PARTS = 8, 10, 8


def net():
    torch.manual_seed(5)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))


torch.manual_seed(6)
INPUTS, TARGETS = torch.randn(16, WIDTH), torch.randn(16, WIDTH)
ALONE = Alone(net(), lambda model: nn.functional.mse_loss(model(INPUTS), TARGETS))


def cut(stages):
    """Where stages begin and end; the first ones have more layers."""
    ends = [0]
    for stage in range(stages):
        ends.append(ends[-1] + (LAYERS - ends[-1] + stages - stage - 1) // (stages - stage))
    return list(pairwise(ends))


def pipeline(schedule_of, mine, stages, group=None, wrap=lambda part: part, whole=(INPUTS, TARGETS), finish=None):
    """Train with the stages `mine` on this rank."""
    x, y = on_device(*whole)
    parts, named, made = cut(stages), {}, []
    for stage in mine:
        first, last = parts[stage]
        part = copy.deepcopy(net()[first:last]).to(DEVICE)
        part = wrap(part)
        named |= dict(part.named_parameters())  # a slice keeps the names of the whole
        made.append(PipelineStage(part, stage, stages, torch.device(DEVICE), group=group))
    schedule = schedule_of(made if len(made) > 1 else made[0], PARTS, nn.functional.mse_loss)
    starts, ends = 0 in mine, stages - 1 in mine

    def step():
        losses = []
        schedule.step(*([x] if starts else []), **({"target": y, "losses": losses} if ends else {}))
        if finish:
            finish(named)
        return torch.stack(losses).mean().item() if ends else None

    return train(named, step, ALONE, foreach=False)


def interleaved():
    mine = [RANK, RANK + RANKS]
    bits = [pipeline(ScheduleInterleaved1F1B, mine, 2 * RANKS) for _ in range(2)]
    assert bits[0] == bits[1]
    pipeline(ScheduleLoopedBFS, mine, 2 * RANKS)


def zero_bubble():
    pipeline(ScheduleInterleavedZeroBubble, [RANK, RANK + RANKS], 2 * RANKS)


def in_the_shape_of_a_v():
    for schedule in (ScheduleZBVZeroBubble, ScheduleDualPipeV):
        pipeline(schedule, [RANK, 2 * RANKS - 1 - RANK], 2 * RANKS)


def uneven_stages():
    pipeline(Schedule1F1B, [RANK], RANKS)


def batches_of_transfers():
    """Each rank sends to all and receives from all, in an order of its own; sizes differ, one is empty."""
    others = [rank for rank in range(RANKS) if rank != RANK]
    got = {rank: torch.zeros(rank + 3 * RANK, device=DEVICE) for rank in others}
    ops = [dist.P2POp(dist.irecv, got[rank], rank) for rank in reversed(others)]
    ops += [
        dist.P2POp(dist.isend, torch.full((RANK + 3 * rank,), 10.0 * RANK + rank, device=DEVICE), rank)
        for rank in others
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for rank, tensor in got.items():
        assert torch.equal(tensor.cpu(), torch.full((rank + 3 * RANK,), 10.0 * rank + RANK))
    objects = [None]
    if RANK == 0:
        dist.send_object_list([{"from": 0}], 1)
    elif RANK == 1:
        dist.recv_object_list(objects, 0)
        assert objects == [{"from": 0}]
    assert on([1.0]).item() == 1


CHECKS = [uneven_stages, interleaved, zero_bubble, in_the_shape_of_a_v, batches_of_transfers]
