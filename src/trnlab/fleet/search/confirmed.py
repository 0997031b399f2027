# SPDX-License-Identifier: Apache-2.0
"""Steps that are one program, compiled as such: what `trnlab estimate` finds for a script that trains so.

A search puts steps together from parts that many layouts share. Where all blocks are on each rank, and weights are
divided among data parallel ranks, the step of a rank is one program, and needs no putting together.
"""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from trnlab.errors import TrnlabError
from trnlab.fleet.arrays import Bools
from trnlab.fleet.costs.whole_steps import Whole, whole
from trnlab.fleet.layers.sizes import Experts
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.search.layout import Layouts, columns_of
from trnlab.fleet.search.shard_costs import Training, shard_keys_of
from trnlab.fleet.search.steps import PlannedStep, Planner


def are_one_program(model: Model, x: Layouts) -> Bools:
    """[N] whether a rank's step of each layout is one program that is made here."""
    if model.decoded or any(isinstance(block.network, Experts) for _, block in model.stacks) or len(model.stacks) > 1:
        return np.zeros(len(x), np.bool_)
    alone = x["pipeline"] * x["context"] * x["expert"] == 1
    return np.asarray(alone & (x["zero"] == 3) & (x["overlap"] > 0))


def confirmed(planner: Planner, training: Training, step: PlannedStep) -> PlannedStep | None:
    """The same step from its own program; None where it is none, or where the compiler refuses it. Which part of it
    is made again is as the parts have it."""
    layout, programs, columns = step.layout, planner.programs, columns_of([step.layout])
    if not are_one_program(training.model, columns).all():
        return None
    ((piece,), _) = shard_keys_of(columns)
    spec, times = planner.spec_of(training, piece), layout.microbatches(training.batch)
    ends = replace(training.model, name="", source="")
    key = f"whole step {ends} {spec} {planner.cluster.ranks} of {planner.cluster.name} {times}"
    if key not in programs.known:
        try:
            programs.known[key] = asdict(whole(programs, planner.cluster, training.model, spec, times))
        except TrnlabError:
            return None
    found = Whole(**programs.known[key])
    again = min(step.seconds["recompute"], found.seconds["compute"])
    seconds = {cause: found.seconds.get(cause, 0.0) for cause in step.seconds}
    seconds |= {"compute": seconds["compute"] - again, "recompute": again}
    sizes = {name: found.bytes.get(name, 0) for name in step.bytes}
    return replace(step, total=sum(seconds.values()), seconds=seconds, bytes=sizes)
