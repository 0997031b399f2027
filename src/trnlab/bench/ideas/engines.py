# SPDX-License-Identifier: Apache-2.0
"""Another engine for the instructions of a line, or for every second one, where the instruction may run there.

Which engines execute an instruction is its page's (`trnlab isa NAME`), from nki.isa. The meaning of an instruction
does not depend on the engine; that it does not here, either, is checked by executing both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.bench.ideas.change import KernelChange, SourceEdit
from trnlab.chips.spec import Chip
from trnlab.errors import ConstraintError
from trnlab.isa.base import Engine, Work
from trnlab.isa.collectives.meeting import Meeting
from trnlab.program.routine import COL, OPEN_ENGINE, Routine
from trnlab.program.text import operands_of

GROUPS = 10  # of instructions of a line that are tried, those with most work first
_COUNTS = [COL[f"count{d}"] for d in range(4)]
_NAMES = {
    Engine.TENSOR: "tensor",
    Engine.VECTOR: "vector",
    Engine.SCALAR: "scalar",
    Engine.GPSIMD: "gpsimd",
    Engine.SYNC: "sync",
}


_TRIGGERS = "transfers of one queue begin one after the other; those that another engine triggers have another queue"
_WORDS = {"nki": "nisa.engine.{}", "neuronxcc": "nisa.{}_engine"}  # how a dialect names an engine


@dataclass(frozen=True)
class _Group:
    """The instructions of one kind that a line issues to one engine."""

    opcode: int
    line: int  # number of its location
    engine: Engine

    def of(self, routine: Routine) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Their numbers."""
        same = (routine.opcode == self.opcode) & (routine.loc == self.line) & (routine.engine == self.engine)
        found: np.ndarray[Any, np.dtype[np.int64]] = np.flatnonzero(same)
        return found


def changes(routine: Routine, chip: Chip, dialect: str, active: Mapping[str, float]) -> Iterator[KernelChange]:
    """The moves to engines that have less to do. active: the part of the time that each engine works, by name.
    Transfers: only where the dialect lets a kernel say who triggers them."""
    for group in _groups(routine, dialect):
        instr, own = isa.BY_OPCODE[group.opcode], active.get(_NAMES[group.engine], 0.0)
        for target in instr.engines_on(chip):
            other = active.get(_NAMES[target], 0.0)
            if target is not group.engine and (other < own or instr.is_dma):
                words = _WORDS[dialect].format(_NAMES[target])
                yield from (_change(routine, group, target, step, words, (own, other)) for step in (1, 2))


def _groups(routine: Routine, dialect: str) -> list[_Group]:
    """Groups by the elements that they stream, the most first."""
    owner = np.repeat(np.arange(len(routine)), np.diff(routine.first_operand))
    sizes = np.zeros(len(routine), np.int64)
    np.maximum.at(sizes, owner, routine.operands[:, _COUNTS].prod(axis=1))
    total: dict[_Group, int] = defaultdict(int)
    for code, line, engine, size in zip(routine.opcode, routine.loc, routine.engine, sizes + 64):
        total[_Group(int(code), int(line), Engine(int(engine)))] += int(size)
    movable = [g for g in total if len(isa.BY_OPCODE[g.opcode].engines) > 1 and _may_say(g, dialect)]
    return sorted(movable, key=lambda g: -total[g])[:GROUPS]


def _may_say(group: _Group, dialect: str) -> bool:
    """Whether a kernel can name the engine in its source, and the instruction leaves nothing behind in it: registers
    of an engine are no other engine's."""
    instr = isa.BY_OPCODE[group.opcode]
    keeps = any(spec.state for spec in instr.operands) or "reduce_cmd" in instr.attrs or "rng" in instr.name
    control = isinstance(instr, Meeting) or any(kind.startswith("sequencer") for kind in instr.cost_kinds)
    return not keeps and not control and (not instr.is_dma or dialect == "nki")


def _change(
    routine: Routine, group: _Group, target: Engine, step: int, words: str, active: tuple[float, float]
) -> KernelChange:
    name, where = isa.BY_OPCODE[group.opcode].name, routine.locs[group.line]
    is_open = len(routine.left_open) and routine.left_open[group.of(routine)[0]] & OPEN_ENGINE
    before = "the compiler's choice" if is_open else _NAMES[group.engine]
    line = f"line {where.line}" if where is not None else "no line"
    which = "every second one of the" if step == 2 else "the"
    condition = words + (f" for every second one, {before} for the others" if step == 2 else "")
    return KernelChange(
        f"engine:{name}@{where.line if where else 0}:{_NAMES[target]}" + ("/2" if step == 2 else ""),
        f"{which} {name} of {line} on {_NAMES[target]} in the place of {before}",
        _TRIGGERS
        if isa.BY_OPCODE[group.opcode].is_dma
        else f"{_NAMES[group.engine]} is active {active[0]:.0%} of the time, {_NAMES[target]} {active[1]:.0%}",
        isa.BY_OPCODE[group.opcode].source,
        f"nisa.{name}(..., engine=E) in {line}, E {condition}" + (f": {where.text.strip()}" if where else ""),
        make=partial(_moved, group=group, target=target, step=step),
        edit=SourceEdit(where.line, name, words.partition(".")[2]) if where is not None and step == 1 else None,
    )


def _moved(routine: Routine, chip: Chip, *, group: _Group, target: Engine, step: int) -> Routine | None:
    """The routine with every `step`th instruction of a group on another engine; None where it does not run there."""
    chosen = group.of(routine)[::step]
    works = {work: n for n, work in enumerate(routine.works)}
    engine, work, left_open = routine.engine.copy(), routine.work.copy(), routine.left_open.copy()
    known: dict[Any, Work] = {}
    try:
        for i in chosen.tolist():
            found = _work(routine, i, target, chip, known)
            work[i] = works.setdefault(found, len(works))
    except ConstraintError:
        return None
    engine[chosen] = target
    if len(left_open):
        left_open[chosen] &= ~OPEN_ENGINE
    changed: dict[str, Any] = {"engine": engine, "work": work, "left_open": left_open, "works": tuple(works)}
    return replace(routine, **changed, changes=(), spills=(), _memo={})


def _work(routine: Routine, i: int, engine: Engine, chip: Chip, known: dict[Any, Work]) -> Work:
    """The work of an instruction on another engine. Raises ConstraintError where it does not execute it."""
    first, last = routine.first_operand[i : i + 2]
    form = routine.operands[first:last].copy()
    form[:, [COL["first"], COL["last"]]] = 0
    key = (int(routine.opcode[i]), int(routine.attr[i]), form.tobytes())
    if key not in known:
        instr = isa.BY_OPCODE[int(routine.opcode[i])]
        operands = {instr.operands[role].name: ap for role, ap in operands_of(routine, i)}
        attrs = dict(routine.attr_table[int(routine.attr[i])])
        known[key] = isa.validate(instr, operands, attrs, engine, chip, None)
    return known[key]
