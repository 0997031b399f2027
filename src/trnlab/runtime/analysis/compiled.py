# SPDX-License-Identifier: Apache-2.0
"""What the hardware's compiler is taken to have made of kernels, for the summary: passes, and what was spilled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from trnlab import isa, policy
from trnlab.policy import Policy
from trnlab.program.changes import RecordingSize
from trnlab.program.routine import COL, Routine
from trnlab.runtime.executable import Executable
from trnlab.sim.timing import whatif
from trnlab.sim.timing.plan import TimingPlan

MARK = "'"  # in names: what follows says which version of a tile it is


def policy_fields(chosen: Policy) -> dict[str, Any]:
    """A policy: its name, and all options."""
    return {"name": chosen.name, "options": {name: policy.shown(value) for name, value in chosen.values().items()}}


def kernel_fields(executable: Executable) -> dict[str, Any]:
    """The policy of a kernel, and what each pass did to the recordings of its cores."""
    before: dict[str, list[RecordingSize]] = {}
    after: dict[str, list[RecordingSize]] = {}
    for routine in executable.program.routines:
        for change in routine.changes:
            before.setdefault(change.option, []).append(change.before)
            after.setdefault(change.option, []).append(change.after)
    passes = [
        {
            "option": option,
            "instructions": [sum(s.instructions for s in sizes) for sizes in (before[option], after[option])],
            "tiles": [sum(s.tiles for s in sizes) for sizes in (before[option], after[option])],
            "moved_bytes": [sum(s.moved for s in sizes) for sizes in (before[option], after[option])],
        }
        for option in before
    ]
    return {"policy": executable.policy.name, "passes": passes}


def spilled_tiles(calls: Iterable[tuple[Executable, int]]) -> list[dict[str, Any]]:
    """The tiles that left a memory in a step, those that cost most bytes first."""
    found: Counter[tuple[str, ...]] = Counter()
    saved: Counter[tuple[str, ...]] = Counter()
    reloaded: Counter[tuple[str, ...]] = Counter()
    for executable, count in calls:
        for _, routine in executable.program:
            for s in routine.spills:
                key = routine.name, s.tile, str(s.where) if s.where else "", s.source, s.target
                found[key] += s.times * count
                saved[key] += s.saved * count
                reloaded[key] += s.reloaded * count
    names = ("kernel", "tile", "line", "from", "to")
    return [
        {**dict(zip(names, key)), "times": found[key], "save_bytes": saved[key], "reload_bytes": reloaded[key]}
        for key in sorted(found, key=lambda key: (-(saved[key] + reloaded[key]), key))
    ]


def spill_cost(executable: Executable) -> int:
    """Picoseconds that an execution would be shorter if what moves tiles out of memory and back cost nothing.

    0 where nothing was spilled.
    """
    if not any(r.spills for r in executable.program.routines):
        return 0
    with policy.use(executable.policy):
        without = whatif.retime(executable.laid, executable.chip, whatif.without(_moves, whatif.WORK))
    return executable.timeline.total - without


def _moves(routine: Routine, p: TimingPlan) -> whatif.Mask:
    """The instructions that move tiles out of a memory and back: transfers of scratch, copies of a tile to itself."""
    owner = routine.operands[:, COL["buffer"]]
    scratch = np.array([b.kind == "scratch" for b in routine.buffers], np.bool_)
    mask = np.zeros(len(routine), np.bool_)
    mask[np.repeat(np.arange(len(routine)), np.diff(routine.first_operand))[scratch[owner]]] = True
    for i in np.flatnonzero(routine.opcode == isa.REGISTRY["tensor_copy"].opcode).tolist():
        dst, src = (routine.buffers[b].name for b in owner[routine.first_operand[i] :][:2])
        mask[i] = dst == f"{src.partition(MARK)[0]}{MARK}kept"
    return mask
