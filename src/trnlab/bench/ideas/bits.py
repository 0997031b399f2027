# SPDX-License-Identifier: Apache-2.0
"""Whether two programs compute the same bits: both are executed, the changed one in two orders, on hostile inputs.

A list of instructions takes the same way whatever it is given, so that a few inputs that mix everything say much:
usual numbers, zeros, rows of all hostile kinds in turn, and these with infinities, NaN, negative zeros and numbers
below the normal ones among them. Results that are NaN on both sides count as the same, whatever their payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trnlab.bench import hostile
from trnlab.chips.spec import Chip
from trnlab.isa.base import Memory
from trnlab.nki.portable import PortableKernel
from trnlab.nki.tracing.arrays import HostArray, to_host
from trnlab.nki.tracing.traces import memory_of
from trnlab.program.routine import COL, Routine
from trnlab.sim.functional import Machine
from trnlab.sim.timing import layout
from trnlab.sim.timing.schedule import planned

Array = np.ndarray[Any, Any]
Case = tuple[str, list[HostArray]]
FAR = 1 << 30  # no bank
STREWN = 4096  # one element of so many is a special number
SPECIAL = (np.inf, -np.inf, np.nan, -0.0, 1e-40, -1e-40)


@dataclass(frozen=True)
class BitCases:
    """Inputs for a kernel that takes these arguments, made when they are asked for. Integers stay as they are: nobody
    knows what they count."""

    arguments: Sequence[Any]
    seed: int = 0

    def __iter__(self) -> Iterator[Case]:
        for name, make in KINDS.items():
            rng = np.random.default_rng(self.seed)
            usual = [_usual(a, rng) for a in self.arguments if isinstance(a, np.ndarray)]
            yield name, [to_host(make(a, rng)) for a in usual]


def _usual(a: Array, rng: np.random.Generator) -> Array:
    """Its own contents, or a normal distribution where it is a stand-in of zeros."""
    if not hostile.is_float(a) or np.count_nonzero(a):
        return a
    found: Array = np.asarray(rng.standard_normal(a.shape)).astype(a.dtype)
    return found


def _mixed(a: Array, rng: np.random.Generator) -> Array:
    """Rows of all hostile kinds in turn."""
    if not hostile.is_float(a) or not a.size or not a.ndim:
        return a.copy()
    rows = np.arange(a.shape[0]) % (len(hostile.FAMILIES) + 1)
    found = a.copy()
    for number, name in enumerate(hostile.FAMILIES):
        if (rows == number + 1).any():
            found[rows == number + 1] = hostile.made(name, [a[rows == number + 1]], rng)[0]
    return found


def _special(a: Array, rng: np.random.Generator) -> Array:
    """The same, with special numbers strewn in, each of them where there is room."""
    found = _mixed(a, rng)
    if hostile.is_float(a) and a.size:
        flat, count = found.reshape(-1), max(a.size // STREWN, min(len(SPECIAL), a.size))
        values = np.resize(np.array(SPECIAL), count).astype(np.float32)
        with np.errstate(all="ignore"):
            flat[rng.choice(a.size, count, replace=False)] = values.astype(a.dtype)
    return found


KINDS: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "usual": lambda a, rng: a,
    "zeros": lambda a, rng: hostile.made("zeros", [a], rng)[0],
    "mixed": _mixed,
    "special": _special,
}


def results(kernel: PortableKernel, arrays: list[HostArray], chip: Chip) -> list[Array]:
    """What a kernel writes, executed in the order of the program."""
    with np.errstate(all="ignore"):
        _, memory = kernel.run(arrays, chip)
    return [memory[n] for n in _written(kernel)]


def results_by_time(kernel: PortableKernel, arrays: list[HostArray], chip: Chip) -> list[Array]:
    """What a kernel writes, executed in the order in which the timeline starts its instructions."""
    timeline, routine = kernel.timeline(chip), _as_banked(kernel, chip)
    memory = memory_of(kernel.trace, [replace(a, data=a.data.copy()) for a in arrays])
    machine = Machine(chip, sbuf_bytes=routine.sbuf_bytes)
    (call,) = kernel.trace.program.calls
    with np.errstate(all="ignore"):
        machine.call(
            routine, [memory[t] for t in call.args], order=np.argsort(timeline.start, kind="stable").astype(np.int64)
        )
    return [memory[n] for n in _written(kernel)]


def _written(kernel: PortableKernel) -> list[int]:
    return sorted(kernel.trace.program.outputs)


def _as_banked(kernel: PortableKernel, chip: Chip) -> Routine:
    """The routine with its tiles of PSUM in the banks that the schedule gives them."""
    routine = kernel.trace.routine
    if not len(routine.left_open):
        return routine
    plan, bank = planned(routine, chip, kernel.policy(chip)), chip.psum.bank_bytes_per_partition
    owner = np.insert(routine.operands[:, COL["buffer"]], plan.beside, -1)
    banks = dict(zip(owner.tolist(), (plan.uses & layout.SLOT_MASK).tolist()))
    moved = tuple(
        replace(b, address=banks[b.id] * bank)
        if b.memory is Memory.PSUM and b.nbytes <= bank and banks.get(b.id, FAR) < routine.num_psum
        else b
        for b in routine.buffers
    )
    return replace(routine, buffers=moved, _memo={})


def differs(one: Sequence[Array], other: Sequence[Array]) -> bool:
    """Whether any element differs, NaN from NaN aside."""
    return len(one) != len(other) or any(not _same(a, b) for a, b in zip(one, other))


def _same(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    bits = np.dtype(f"u{a.dtype.itemsize}")
    equal = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    if equal.all() or not hostile.is_float(a):
        return bool(equal.all())
    both = np.isnan(a.astype(np.float32)) & np.isnan(b.astype(np.float32))
    return bool((equal | both.reshape(equal.shape)).all())


ORDERS = {"in the order of the program": results, "in the order of the timeline": results_by_time}
