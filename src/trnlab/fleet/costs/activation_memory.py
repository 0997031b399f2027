# SPDX-License-Identifier: Apache-2.0
"""What a stage's program holds in HBM: what it keeps from the forward pass to the backward pass, and what it needs
besides when it is fullest.

Where weights and gradients are parts that ranks gather and spread (ZeRO-3), those of a stage come and go as well: a
weight is there as long as one pass reads it, a gradient from when it is made. On its way it keeps its place until the
next unit's follows (`compiler.communication.spans`), which the end of a stage's program stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trnlab.fleet.costs.stages import Stage
from trnlab.program.routine import Program
from trnlab.runtime.step_cost import FORWARD, Life, StepCost


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes: saved between the passes; needed besides at the fullest moment, less than nothing where that comes when
    some of what was saved is gone; gathered weights and new gradients that are there then."""

    saved: int
    working: int
    gathered: int


def activation_memory(cost: StepCost, made: Stage) -> ActivationMemory:
    """Memory of the program of a stage."""
    program, own, (first, last) = cost.program, cost.temporary_bytes, cost.lives
    turn = max((i for i, name in enumerate(cost.phase) if name == FORWARD), default=-1)
    saved = sum(t.nbytes for t in cost.temporaries if first[t.id] <= turn < last[t.id])
    gaps = program.arena_bytes - max(own, default=0)
    gathered = cost.alive(_gathered(program, made, first, last, turn) if made.sharded else [])
    at = max(range(len(own)), key=lambda i: own[i] + gathered[i], default=0)
    return (
        ActivationMemory(saved, own[at] - saved + gaps, gathered[at])
        if own
        else ActivationMemory(0, program.scratch_bytes, 0)
    )


def _gathered(
    program: Program, made: Stage, first: Mapping[int, int], last: Mapping[int, int], turn: int
) -> list[Life]:
    """From when to when weights and gradients are there, and their bytes. Of a weight the backward pass alone: it is
    gathered again for that, before which the forward pass has let go of it."""
    size = {t.id: t.nbytes for t in program.tensors}
    weights = [program.inputs[i] for i in made.weights]
    gradients = [program.outputs[i] for i in made.gradients]
    end = len(program.calls) - 1
    found = [(turn + 1, last[id], size[id]) for id in weights if last.get(id, -1) > turn]
    return found + [(first[id], end, size[id]) for id in gradients if id in first]
