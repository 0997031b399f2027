# SPDX-License-Identifier: Apache-2.0
"""How long the collectives of a program take: as long as the fabric's schedule for its ranks on its cluster.

All ranks do the same at the same time, so one stands for all. A collective occupies a stream of the CC cores from its
start to its end (`streams`); of several tensors that are one collective, each takes its share of the time.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.collectives import Collective
from trnlab.fabric.timing import CollectiveCost
from trnlab.fabric.world import World, world_of
from trnlab.program.communication import buffer_bytes, buffers_of, collective_of
from trnlab.program.routine import Program, Routine
from trnlab.sim.timing import layout
from trnlab.sim.timing.plan import TimingPlan
from trnlab.sim.timing.streams import StreamUse, use_of
from trnlab.units import PS_PER_S


def with_collectives(program: Program, plans: list[TimingPlan]) -> list[TimingPlan]:
    """The plans of a program's routines, those of collectives with the times that the fabric gives them."""
    if program.ranks == 1:
        return plans
    return [_timed(program, routine, plan) for routine, plan in zip(program.routines, plans)]


def world(program: Program) -> World:
    """The ranks that a program is executed by, and the network between them."""
    return world_of(program.cluster, program.ranks, program.faults, program.changes)


def cost_of(program: Program, routine: Routine, request: Collective) -> CollectiveCost:
    """What one call of a collective's routine costs. Raises UsageError (TRN187) when a link on its way is down."""
    return world(program).cost(request, buffer_bytes(routine))


def uses_of(program: Program, chip: Chip) -> dict[int, StreamUse]:
    """What the collectives of a program take of a core while they are on their way, by routine."""
    found = {}
    for number, routine in enumerate(program.routines):
        asked = collective_of(routine)
        if asked is None:
            continue
        who = asked.groups or asked.pairs
        alone = program.ranks == 1
        found[number] = (
            StreamUse(who) if alone else use_of(cost_of(program, routine, asked), world(program), chip, who)
        )
    return found


def _timed(program: Program, routine: Routine, plan: TimingPlan) -> TimingPlan:
    asked = collective_of(routine)
    if asked is None:
        return plan
    whole = round(cost_of(program, routine, asked).seconds * PS_PER_S)
    sizes = [routine.buffers[routine.params[read]].nbytes for read, _ in buffers_of(routine)]
    ends = [whole * done // max(sum(sizes), 1) for done in accumulate(sizes)]
    shares = [b - a for a, b in pairwise([0, *ends])]
    rows = plan.rows[plan.row_of].copy()
    rows[:, layout.BUSY] = rows[:, layout.ISSUE_GAP] = shares
    rows[:, layout.LATENCY] = 0
    ops = tuple(plan.ops[int(row)] for row in plan.row_of)
    keys = tuple(plan.keys[int(row)] for row in plan.row_of)
    return replace(plan, rows=rows, ops=ops, keys=keys, row_of=np.arange(len(routine), dtype=plan.row_of.dtype))
