# SPDX-License-Identifier: Apache-2.0
"""Calls whose instructions are interleaved: attention, whose matmuls wait for its softmax, and products that nobody
waits for yet, as gradients of weights are.

Each is recorded by itself, with a part of SBUF and some of PSUM's banks. In the routine of both every engine takes
each one's instructions in their order, and of both whichever could start sooner; no value changes by it. How many
products lie beside an attention is what the timing simulator finds best, and none where that gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from trnlab.chips.spec import Chip
from trnlab.compiler.communication import waits
from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import GroupKind
from trnlab.compiler.fusing.packing import InterleavedUnit, Unit
from trnlab.compiler.ordering import in_sooner_order
from trnlab.program import Routine
from trnlab.program.transforms import ends_in, in_order, joined, keeps_registers
from trnlab.sim.timing.schedule import interleaved_order
from trnlab.sim.timing.timer import calls_ps

BANKS = (6, 2)  # of PSUM for the attention, and for the products
MOST = 4  # products beside an attention
NEAR = 16  # calls between a product and the attention behind it at most: what it reads is in memory for longer
LEAST_WORK = 1 << 28  # multiplications and additions of a product, and of an attention
LEAST_GAIN = 0.02  # of the time of all, and as much again for each further choice


class Interleaved(NamedTuple):
    """The routine of an attention and of products, by their numbers; None where it gains nothing."""

    routine: Routine | None
    products: tuple[int, ...]


def interleave_units(units: Sequence[Unit], part: Partition) -> list[Unit]:
    """The units with products moved behind, to the attention after them that does not wait for them."""
    found: list[Unit] = []
    for unit in units:
        beside = _waiting(found, unit, part) if _is_long_attention(unit) else []
        for product in beside:
            found.remove(product)
        found.append(InterleavedUnit([unit, *beside]) if beside else unit)
    return found


def _waiting(before: Sequence[Unit], attention: Unit, part: Partition) -> list[Unit]:
    """Products among the last units that neither an attention nor any unit since waits for, the last one first; but
    those that hide a collective which is on its way stay."""
    found: list[Unit] = []
    since = list(attention)
    for n in range(len(before) - 1, max(len(before) - NEAR, 0) - 1, -1):
        unit = before[n]
        free = len(found) < MOST and _is_large_product(unit) and not waits(since, unit, part)
        if free and not _hides_collective(before, n, part):
            found.append(unit)
        since += unit
    return found


def _hides_collective(units: Sequence[Unit], at: int, part: Partition) -> bool:
    """Whether the collective before a unit has no reader before it."""
    start = next((n for n in range(at - 1, -1, -1) if units[n][0].kind is GroupKind.COLLECTIVE), None)
    return start is not None and not any(waits(unit, units[start], part) for unit in units[start + 1 : at])


def _is_long_attention(unit: Unit) -> bool:
    if unit[0].kind is not GroupKind.ATTENTION:
        return False
    q, k = unit[0].anchor.operands[:2]
    return q.type.size * k.shape[2] >= LEAST_WORK


def _is_large_product(unit: Unit) -> bool:
    """Whether a unit is one product of matrices."""
    op = unit[0].anchor
    if unit[0].kind is not GroupKind.DOT or len(unit) > 1 or op.name not in ("dot_general", "trn.dot_and_sums"):
        return False
    if op.attrs.get("lhs_mx") or op.attrs.get("lhs_batching_dimensions"):
        return False
    contracted = op.attrs.get("lhs_contracting_dimensions", (0,))
    return bool(op.results[0].type.size * prod(op.operands[0].shape[d] for d in contracted) >= LEAST_WORK)


def interleave(
    alone: Sequence[Routine | None],
    beside: Sequence[Routine | None],
    base: int,
    chip: Chip,
    ordered: bool,
) -> Interleaved:
    """The attention and those of its products that gain the most by it, as one routine.

    alone: the attention and all products, each with all banks. beside: the same with BANKS. None of what has no room.
    base: the byte that products' tiles begin at. ordered: whether the whole is put in order, too.
    """
    best, most = Interleaved(None, ()), 0.0
    for found in _candidates(beside, base, chip, ordered):
        before = [alone[0], *(alone[1 + n] for n in found.products)]
        calls = [(r, base * (n % 2 and r.sbuf_bytes <= base)) for n, r in enumerate(before) if r is not None]
        if found.routine is None or len(calls) < len(before):
            continue
        neighbour, turn = calls[1][0], base * (len(calls) % 2)
        # what is before and after counts: calls in one half of SBUF overlap with those in the other
        apart = calls_ps([(neighbour, base), *calls, (neighbour, turn)], chip)
        free = 0 if ends_in(found.routine)[0] >= base else base
        gain = apart - calls_ps([(neighbour, base), (found.routine, 0), (neighbour, free)], chip)
        if gain > most + LEAST_GAIN * apart:
            best, most = found, gain
    return best


def _candidates(beside: Sequence[Routine | None], base: int, chip: Chip, ordered: bool) -> Iterator[Interleaved]:
    """The attention with its first product, its first two and so on."""
    attention, *products = beside
    if attention is None or keeps_registers(attention):
        return
    chain, there = None, list[int]()
    for number, product in enumerate(products):
        if product is None or keeps_registers(product):
            continue
        chain, there = product if chain is None else joined(chain, product, chip), [*there, number]
        whole = joined(attention, chain, chip, base, BANKS[0])
        whole = in_order(whole, interleaved_order(whole, len(attention), chip))
        yield Interleaved(in_sooner_order(whole, chip) if ordered else whole, tuple(there))
