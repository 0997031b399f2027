# SPDX-License-Identifier: Apache-2.0
"""Who triggers the transfers of a kernel that leaves it open, and on which queue.

In the profiles of kernels on NeuronCore-v3, descriptors are made when a transfer is triggered. Arguments and results,
whose addresses are bound at run time, are moved by GpSimdE, whose software makes the descriptors; other memory in HBM
is loaded by SyncE and stored by ScalarE, whose descriptors the hardware makes. Each has one queue (ADR 29). Where
descriptors lie ready in rings, as on NeuronCore-v2, all transfers of a kernel share one queue (ADR 120).
"""

from __future__ import annotations

import numpy as np

from trnlab import isa
from trnlab.chips.spec import Chip
from trnlab.isa.base import Engine, Memory
from trnlab.policy import Policy
from trnlab.program.routine import COL, OPEN_ENGINE, Routine
from trnlab.sim.timing import layout
from trnlab.sim.timing.layout import Array, Ints
from trnlab.sim.timing.plan import TimingPlan, triggered_by


def with_triggers(routine: Routine, base: TimingPlan, chip: Chip, policy: Policy) -> TimingPlan:
    """The plan with an engine and a queue for each transfer that leaves its engine open."""
    is_dma = np.zeros(max(isa.BY_OPCODE) + 1, np.bool_)
    is_dma[[code for code, instr in isa.BY_OPCODE.items() if instr.is_dma]] = True
    chosen = np.flatnonzero(is_dma[routine.opcode] & (routine.left_open & OPEN_ENGINE != 0))
    if policy.triggers == "sync" or not len(chosen):
        return base
    loaded, stored = _tensors(routine, base)
    engine = np.full(len(routine), Engine.SYNC, np.int64)
    if chip.has("hwdge"):
        inside, made = _inside(routine, loaded, stored), ~_in_ring(routine)
        moved = np.where(stored >= 0, stored, loaded)
        engine[made & (stored >= 0) & inside[stored]] = Engine.SCALAR
        engine[made & (moved >= 0) & ~inside[moved]] = Engine.GPSIMD
    return triggered_by(routine, base, chip, chosen, engine, np.zeros(len(routine), np.int64))


def _tensors(routine: Routine, base: TimingPlan) -> tuple[Ints, Ints]:
    """Which tensor in HBM each instruction reads, and which it writes, counted among those; -1: none."""
    number = np.full(len(routine.buffers) + 1, -1, np.int64)
    in_hbm = [b.id for b in routine.buffers if b.memory is Memory.HBM]
    number[in_hbm] = np.arange(len(in_hbm))
    owner = number[routine.operands[:, COL["buffer"]]]
    writes = np.delete(base.uses, base.beside) >> layout.READ_SHIFT & layout.WRITE != 0
    of = np.repeat(np.arange(len(routine)), np.diff(routine.first_operand))
    loaded, stored = np.full((2, len(routine)), -1, np.int64)
    loaded[of[~writes]] = np.maximum(loaded[of[~writes]], owner[~writes])
    stored[of[writes]] = np.maximum(stored[of[writes]], owner[writes])
    return loaded, stored


def _inside(routine: Routine, loaded: Ints, stored: Ints) -> Array:
    """By tensor: whether it is written first and read later, so that nobody outside of the kernel knows of it."""
    count = int(max(loaded.max(initial=-1), stored.max(initial=-1))) + 1
    first = np.full((2, count), len(routine), np.int64)
    for side, tensors in zip(first, (loaded, stored)):
        used = np.flatnonzero(tensors >= 0)
        np.minimum.at(side, tensors[used], used)
    found: Array = (first[1] < first[0]) & (first[0] < len(routine))
    return np.append(found, False)


def _in_ring(routine: Routine) -> Array:
    """Transfers whose descriptors lie ready."""
    kinds = np.array([work.kind == "dma.ring" for work in routine.works], np.bool_)
    found: Array = kinds[routine.work]
    return found
