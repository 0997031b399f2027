# SPDX-License-Identifier: Apache-2.0
"""Steps that are one program, compiled as such: what `trnlab estimate` finds for a script that trains so.

A search puts steps together from parts that many layouts share. Where all blocks are on each rank, and weights are
divided among data parallel ranks, the step of a rank is one program, and needs no putting together.
"""

from __future__ import annotations

from dataclasses import replace

from trnlab.errors import TrnlabError
from trnlab.fleet.costs.whole_steps import whole
from trnlab.fleet.layers.sizes import Experts
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.search.layout import Layout, columns_of
from trnlab.fleet.search.shard_costs import Training, shard_keys_of
from trnlab.fleet.search.steps import PlannedStep, Planner


def is_one_program(model: Model, layout: Layout) -> bool:
    """Whether a rank's step of a layout is one program that is made here."""
    if layout.pipeline * layout.context * layout.expert > 1 or layout.zero != 3 or not layout.overlap:
        return False
    return not (model.decoded or any(isinstance(block.network, Experts) for _, block in model.stacks))


def confirmed(planner: Planner, training: Training, step: PlannedStep) -> PlannedStep | None:
    """The same step from its own program; None where it is none, or where the compiler refuses it. Which part of it
    is made again is as the parts have it."""
    layout, programs = step.layout, planner.programs
    if not is_one_program(training.model, layout):
        return None
    ((piece,), _) = shard_keys_of(columns_of([layout]))
    share = planner.spec_of(training, piece)
    times, known = layout.microbatches(training.batch), len(programs.known)
    try:
        found = whole(programs.session, planner.cluster, training.model, share, times, programs.known)
    except TrnlabError:
        return None
    programs.compiled += len(programs.known) - known
    again = min(step.seconds["recompute"], found.seconds["compute"])
    seconds = {cause: found.seconds.get(cause, 0.0) for cause in step.seconds}
    seconds |= {"compute": seconds["compute"] - again, "recompute": again}
    sizes = {name: found.bytes.get(name, 0) for name in step.bytes}
    return replace(step, total=sum(seconds.values()), seconds=seconds, bytes=sizes)
