# SPDX-License-Identifier: Apache-2.0
"""What a program would take if something cost nothing: the same pass with that cost removed.

    retime(program, chip, without(chosen, ALL))     # chosen: which instructions of a routine
    retime(more_copies(program, chip, 2), chip)     # tiles that are written again take turns with a second copy

Each answer is the time of a whole run in picoseconds. What is left out is left out everywhere and nothing takes its
place, so the gain is the most that work on that cost can bring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from trnlab import chips
from trnlab.chips.spec import Chip
from trnlab.isa.base import Memory
from trnlab.loops import compiled
from trnlab.program.routine import Program, Routine
from trnlab.sim.timing import layout
from trnlab.sim.timing.plan import TimingPlan, forget
from trnlab.sim.timing.timer import time_program

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Edit = Callable[[Routine, TimingPlan], TimingPlan]
Choose = Callable[[Routine, TimingPlan], Mask]  # which instructions of a routine
WORK = (
    layout.BUSY,
    layout.LATENCY,
    layout.EXPOSED,
    layout.TABLE,
    layout.ISSUE_GAP,
    layout.SHARE,
    layout.STAGGER,
    layout.WAKE,
)
MOVING = (layout.SHARE, layout.STAGGER)
PORTS = (layout.PORTS,)


def retime(program: Program, chip: Chip, edit: Edit | None = None) -> int:
    """Picoseconds of a run of `program`, its plans changed by `edit`."""
    return time_program(program, chip, edit=edit).total


def retime_with(program: Program, chip: Chip, figures: dict[str, float]) -> int:
    """Picoseconds of a run on a chip with other figures; those that the chip does not have are left out."""
    known = {path for path, _ in chips.figures(chip)}
    changed = chips.with_figures(chip, {path: value for path, value in figures.items() if path in known})
    try:
        return time_program(program, changed).total
    finally:
        for routine in program.routines:
            forget(routine, changed)


def without(choose: Choose, columns: tuple[int, ...]) -> Edit:
    """Let these columns of the cost rows be zero for the chosen instructions."""

    def edit(routine: Routine, p: TimingPlan) -> TimingPlan:
        chosen = choose(routine, p)
        if not chosen.any():
            return p
        free = p.rows.copy()
        free[:, list(columns)] = 0
        if columns == WORK:
            free[:, layout.RING] = -1  # no transfer: nothing waits for its last byte
        row_of = np.where(chosen, p.row_of + len(p.rows), p.row_of).astype(p.row_of.dtype)
        return replace(p, rows=np.concatenate([p.rows, free]), ops=p.ops + p.ops, row_of=row_of)

    return edit


def with_dtype(program: Program, kinds: str, old: str, new: str) -> Program:
    """The program with the work of these kinds (the start of their cost class) in another format."""

    def changed(routine: Routine) -> Routine:
        works = tuple(
            replace(w, dtype=new) if w.kind.startswith(kinds) and w.dtype == old else w for w in routine.works
        )
        return routine if works == routine.works else replace(routine, works=works, _memo={})

    return replace(program, routines=tuple(changed(r) for r in program.routines))


def split_calls(program: Program, chosen: list[bool]) -> Program:
    """The program with routines of their own for the chosen calls: those from `len(program.routines)` on."""
    count = len(program.routines)
    calls = tuple(replace(c, routine=c.routine + count) if own else c for c, own in zip(program.calls, chosen))
    copies = tuple(replace(r) for r in program.routines)
    return replace(program, routines=program.routines + copies, calls=calls)


def more_copies(program: Program, chip: Chip, copies: int) -> tuple[Program, Edit]:
    """Every tile of SBUF and PSUM that is written again after it was read takes turns with `copies` - 1 others.

    A tile that is written in parts is taken as one; so what waited for a place to become free waits for that no more,
    while what waits for data still does.
    """
    routines = []
    sizes: dict[int, tuple[int, int]] = {}
    for routine in program.routines:
        on_chip = min((s for s in routine.hbm_slot if s >= 0), default=routine.num_slots)
        if not any(b.memory != Memory.HBM for b in routine.buffers):
            on_chip = 0
        larger = replace(routine, num_slots=routine.num_slots + (copies - 1) * on_chip)
        sizes[id(larger)] = on_chip, routine.num_slots
        routines.append(larger)

    def edit(routine: Routine, p: TimingPlan) -> TimingPlan:
        visit = p.visit if len(p.visit) else np.arange(len(p.row_of), dtype=np.int32)
        return replace(p, uses=_rename(visit, p.first_operand, p.uses, *sizes[id(routine)], copies))

    return replace(program, routines=tuple(routines)), edit


@compiled
def _rename(visit: Any, first_operand: Any, uses: Any, on_chip: int, num_slots: int, copies: int) -> Any:
    """The uses with slots of the copy whose turn it is."""
    turn, was_read = np.zeros(on_chip, np.int64), np.zeros(on_chip, np.bool_)
    renamed = uses.copy()
    for i in visit:
        for writing in (False, True):
            for k in range(first_operand[i], first_operand[i + 1]):
                flags = uses[k] >> layout.READ_SHIFT & 3
                if bool(flags & layout.WRITE) != writing:
                    continue
                first = uses[k] & layout.SLOT_MASK
                last = first + (uses[k] >> layout.MORE_SHIFT & layout.MORE_MASK)
                if last >= on_chip:
                    continue
                now, read = np.int64(0), False
                for s in range(first, last + 1):
                    now, read = max(now, turn[s]), read or was_read[s]
                if writing and read and not flags & layout.READ:
                    now, read = (now + 1) % copies, False
                for s in range(first, last + 1):
                    turn[s], was_read[s] = now, read or not writing
                if now:
                    moved = num_slots + (now - 1) * on_chip + first
                    renamed[k] = uses[k] - first + moved
    return renamed
