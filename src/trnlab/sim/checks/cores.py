# SPDX-License-Identifier: Apache-2.0
"""Races between the two cores of a logical core, over the HBM that they share.

Between two meetings of the cores nothing orders what they do. There, bytes that both access and at least one writes
are a race, unless the order makes no difference: cores that write the same values (a kernel that does not divide its
work) and read what they wrote themselves. So the check has two parts: `conflicts` finds, from the streams alone, the
tensors and stretches in which both cores touch the same bytes; `GangWatch` looks at the values there while the gang
runs.

A barrier is taken to order all that comes before it, whatever tensor it names. Rows that an index chooses are left
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from trnlab.errors import ConstraintError, Location
from trnlab.loops import compiled
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.access import MAX_FREE_DIMS
from trnlab.program.gang import Gang, GangMember, points, where
from trnlab.program.routine import COL
from trnlab.sim.checks.shadow_memory import READ, SOME, WRITE
from trnlab.sim.checks.usage import usage

Array = np.ndarray[Any, Any]
NAME = "race"
_STEPS = [COL[f"step{d}"] for d in range(MAX_FREE_DIMS)]
_COUNTS = [COL[f"count{d}"] for d in range(MAX_FREE_DIMS)]
_READS, _WRITES = (1, 4), (2, 8)  # bits in a map of bytes, of the first core and of the second


@dataclass(frozen=True)
class Accesses:
    """What a core does to HBM, one row per operand in the order of the stream.

    at: instruction. row: of routine.operands. tensor: its number. bits: READ, WRITE. low, high: first and last byte.
    """

    at: Array
    row: Array
    tensor: Array
    bits: Array
    low: Array
    high: Array

    def of(self, chosen: Array) -> Accesses:
        """Some of the rows."""
        return Accesses(*(getattr(self, name)[chosen] for name in ("at", "row", "tensor", "bits", "low", "high")))


@dataclass(frozen=True)
class Stretch:
    """Instructions [first, last) of each core of a pair between two of their meetings, and the tensors at risk."""

    first: tuple[int, int]
    last: tuple[int, int]
    tensors: tuple[int, ...]


def conflicts(gang: Gang) -> dict[tuple[int, int], tuple[Stretch, ...]]:
    """For each pair of members that share HBM, the stretches in which both touch the same bytes and one writes."""
    found = {}
    for pair in _pairs(gang):
        accesses = [_accesses(gang.members[m]) for m in pair]
        stretches = []
        for first, last in _stretches(gang, pair):
            sides = [a.of((a.at >= f) & (a.at < n)) for a, f, n in zip(accesses, first, last)]
            tensors = sorted(set(sides[0].tensor.tolist()) & set(sides[1].tensor.tolist()))
            risky = tuple(t for t in tensors if _touch(gang, pair, sides, t))
            if risky:
                stretches.append(Stretch(first, last, risky))
        if stretches:
            found[pair] = tuple(stretches)
    return found


def _pairs(gang: Gang) -> list[tuple[int, int]]:
    by_rank: dict[int, list[int]] = {}
    for m, member in enumerate(gang.members):
        by_rank.setdefault(member.place.rank, []).append(m)
    return [(mine[0], mine[1]) for mine in by_rank.values() if len(mine) == 2]


def _stretches(gang: Gang, pair: tuple[int, int]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """From meeting to meeting of both."""
    first = (0, 0)
    for event in gang.events:
        at = dict(zip(event.members, event.at))
        if pair[0] in at and pair[1] in at:
            last = (at[pair[0]], at[pair[1]])
            yield first, last
            first = (last[0] + 1, last[1] + 1)
    yield first, (len(gang.members[pair[0]].routine), len(gang.members[pair[1]].routine))


def _accesses(member: GangMember) -> Accesses:
    routine = member.routine
    operands = routine.operands
    bits = usage(routine)[0] if len(operands) else np.zeros(0, np.int64)
    owner = np.repeat(np.arange(len(routine)), np.diff(routine.first_operand))
    tensors = np.full(len(routine.buffers), -1, np.int64)
    tensors[list(routine.params)] = member.tensors
    known = (operands[:, COL["is_hbm"]] == 1) & (bits & SOME == 0) & (bits & (READ | WRITE) != 0)
    known &= ~np.isin(owner, points(routine))
    row = np.flatnonzero(known & (tensors[operands[:, COL["buffer"]]] >= 0))
    chosen = operands[row]
    item = np.array([BY_CODE[code].itemsize for code in range(len(BY_CODE))])[chosen[:, COL["dtype"]]]
    spans = chosen[:, _STEPS] * (chosen[:, _COUNTS] - 1) * item[:, None]
    start = chosen[:, COL["offset"]] + chosen[:, COL["start_partition"]] * chosen[:, COL["partition_step"]]
    low = start + np.minimum(spans, 0).sum(1)
    high = start + np.maximum(spans, 0).sum(1) + item - 1
    high += chosen[:, COL["partition_step"]] * (chosen[:, COL["partitions"]] - 1)
    sizes = np.array([b.nbytes for b in routine.buffers])[chosen[:, COL["buffer"]]]
    found = Accesses(owner[row], row, tensors[chosen[:, COL["buffer"]]], bits[row], low, high)
    return found.of((low >= 0) & (high < sizes))


def _touch(gang: Gang, pair: tuple[int, int], sides: Sequence[Accesses], tensor: int) -> bool:
    """Whether both cores touch the same bytes of a tensor, and one writes them."""
    mine = [side.of(side.tensor == tensor) for side in sides]
    near = [_near(mine[0], mine[1]), _near(mine[1], mine[0])]
    if not (near[0].any() and near[1].any()):
        return False
    member = gang.members[pair[0]]
    size = member.routine.buffers[member.routine.params[member.tensors.index(tensor)]].nbytes
    found, bytes_ = False, np.zeros(size, np.uint8)
    for core, (side, chosen) in enumerate(zip(mine, near)):
        routine, some = gang.members[pair[core]].routine, side.of(chosen)
        items = np.array([BY_CODE[code].itemsize for code in range(len(BY_CODE))], np.int64)
        reads = np.where(some.bits & READ != 0, _READS[core], 0)
        flags = reads | np.where(some.bits & WRITE != 0, _WRITES[core], 0)
        found |= bool(_mark(bytes_, routine.operands, some.row, flags, items, core))
    return found


def _near(mine: Accesses, others: Accesses) -> Array:
    """Which accesses could touch bytes that the others touch, with a write among the two."""
    writes = others.bits & WRITE != 0
    near = np.zeros(len(mine.at), np.bool_)
    for chosen, wanted in ((writes, READ | WRITE), (~writes, WRITE)):
        if chosen.any():
            low, high = others.low[chosen].min(), others.high[chosen].max()
            near |= (mine.bits & wanted != 0) & (mine.low <= high) & (mine.high >= low)
    return near


@compiled
def _mark(memory: Array, operands: Array, rows: Array, flags: Array, items: Array, core: int) -> bool:
    """Note in a map of bytes who touches them; as the second core, whether one conflicts with the first.

    Columns are those of `routine.OPERAND_COLUMNS`: 2 dtype, 3 start_partition, 4 partitions, 5 partition_step, 6
    offset, 7.. step and count of four dimensions.
    """
    for k in range(len(rows)):
        r = operands[rows[k]]
        item = items[r[2]]
        for p in range(r[4]):
            at0 = r[6] + (r[3] + p) * r[5]
            for a in range(r[8]):
                for b in range(r[10]):
                    for c in range(r[12]):
                        at = at0 + (a * r[7] + b * r[9] + c * r[11]) * item
                        for d in range(r[14]):
                            first = at + d * r[13] * item
                            for x in range(first, first + item):
                                if core == 1:
                                    known = memory[x]
                                    if known & 2 or (known & 1 and flags[k] & 8):
                                        return True
                                memory[x] |= flags[k]
    return False


class _Bytes:
    """What happened in this stretch to a tensor at risk, per granule.

    read, written: the last instruction of each core that did. changed: the core that left another value. -1: nobody.
    """

    def __init__(self, count: int, granule: int) -> None:
        self.granule = granule
        self.read, self.written = (np.full((2, count), -1, np.int32) for _ in range(2))
        self.changed = np.full(count, -1, np.int8)


class GangWatch:
    """Looks at values while a gang runs. tensors: by number."""

    def __init__(self, gang: Gang, tensors: Sequence[Array]) -> None:
        self.gang, self.tensors = gang, tensors
        self._side: dict[int, tuple[tuple[int, int], int]] = {}
        self._stretches: dict[tuple[int, int], list[Stretch]] = {}
        self._bytes: dict[tuple[int, int], dict[int, _Bytes]] = {}
        self._accesses: dict[int, Accesses] = {}
        self._told: set[tuple[Location | None, Location | None]] = set()
        self.found: list[ConstraintError] = []  # for `GangRun`, which runs the cores in another order and reports
        for pair, stretches in self._known(gang).items():
            self._stretches[pair] = list(stretches)
            for side, m in enumerate(pair):
                self._side[m] = pair, side
                self._accesses[m] = _accesses(gang.members[m])
            self._enter(pair)

    @staticmethod
    def _known(gang: Gang) -> dict[tuple[int, int], tuple[Stretch, ...]]:
        if "conflicts" not in gang.memo:
            gang.memo["conflicts"] = conflicts(gang)
        found: dict[tuple[int, int], tuple[Stretch, ...]] = gang.memo["conflicts"]
        return found

    @property
    def looks(self) -> bool:
        """Whether there is anything to look at."""
        return any(self._stretches.values())

    def risky(self, m: int) -> list[int]:
        """All instructions of a member that touch tensors at risk, in order."""
        if m not in self._side:
            return []
        pair, side = self._side[m]
        found, at = self._accesses[m], set()
        for stretch in self._stretches[pair]:
            inside = (found.at >= stretch.first[side]) & (found.at < stretch.last[side])
            at |= set(found.at[inside & np.isin(found.tensor, stretch.tensors)].tolist())
        return sorted(at)

    def _enter(self, pair: tuple[int, int]) -> None:
        """The stretch that comes next begins with nothing touched."""
        self._bytes[pair] = {}
        for tensor in self._stretches[pair][0].tensors if self._stretches[pair] else ():
            granule = self._granule(pair, tensor)
            self._bytes[pair][tensor] = _Bytes(self.tensors[tensor].nbytes // granule, granule)

    def _granule(self, pair: tuple[int, int], tensor: int) -> int:
        """A size that divides every element, step and offset."""
        size = self.tensors[tensor].nbytes
        for m in pair:
            found = self._accesses[m]
            for r in self.gang.members[m].routine.operands[found.row[found.tensor == tensor]]:
                size = gcd(size, BY_CODE[int(r[COL["dtype"]])].itemsize, int(r[COL["offset"]]))
                size = gcd(size, int(r[COL["partition_step"]]))
        return size

    def passed(self, m: int, at: int) -> None:
        """Member m has left meeting `at` behind: a stretch that ends there is over."""
        if m not in self._side:
            return
        pair, side = self._side[m]
        while self._stretches[pair] and self._stretches[pair][0].last[side] <= at:
            self._stretches[pair].pop(0)
            self._enter(pair)

    def stops(self, m: int, first: int, last: int) -> list[int]:
        """Instructions of [first, last) of a member that touch tensors at risk."""
        if m not in self._side:
            return []
        pair, side = self._side[m]
        if not self._stretches[pair]:
            return []
        here, found = self._stretches[pair][0], self._accesses[m]
        low, high = max(first, here.first[side]), min(last, here.last[side])
        inside = (found.at >= low) & (found.at < high) & np.isin(found.tensor, here.tensors)
        return sorted(set(found.at[inside].tolist()))

    def before(self, m: int, at: int) -> list[tuple[int, Array]]:
        """Member m is about to execute an instruction: what it reads is checked, what it writes remembered."""
        saved = []
        for row, tensor, bits in self._operands(m, at):
            if bits & READ:
                self._reads(m, at, row, tensor)
            if bits & WRITE:
                saved.append((row, self._values(m, row, tensor)))
        return saved

    def after(self, m: int, at: int, saved: list[tuple[int, Array]]) -> None:
        """It has been executed."""
        pair, side = self._side[m]
        for row, before in saved:
            tensor = self._tensor_of(m, row)
            seen = self._bytes[pair][tensor]
            changed = before != self._values(m, row, tensor)
            for whose in (seen.written[1 - side], seen.read[1 - side]):
                there = self._spots(whose, m, row, seen.granule)
                clash = changed[..., None] & (there >= 0)
                if clash.any():
                    self._tell(m, at, pair[1 - side], int(there[clash].max()), tensor, int(changed.sum()))
            marks = self._spots(seen.changed, m, row, seen.granule)
            marks[changed] = side
            self._spots(seen.written[side], m, row, seen.granule)[...] = at

    def _reads(self, m: int, at: int, row: int, tensor: int) -> None:
        pair, side = self._side[m]
        seen = self._bytes[pair][tensor]
        changed = self._spots(seen.changed, m, row, seen.granule) == 1 - side
        clash = changed & (self._spots(seen.written[side], m, row, seen.granule) < 0)
        if clash.any():
            writer = self._spots(seen.written[1 - side], m, row, seen.granule)
            self._tell(m, at, pair[1 - side], int(writer[clash].max()), tensor, int(clash.any(-1).sum()))
        self._spots(seen.read[side], m, row, seen.granule)[...] = at

    def _operands(self, m: int, at: int) -> list[tuple[int, int, int]]:
        found = self._accesses[m]
        risky = self._bytes[self._side[m][0]]
        rows = np.flatnonzero(found.at == at).tolist()
        known = [(int(found.row[i]), int(found.tensor[i]), int(found.bits[i])) for i in rows]
        return [one for one in known if one[1] in risky]

    def _tensor_of(self, m: int, row: int) -> int:
        found = self._accesses[m]
        return int(found.tensor[found.row == row][0])

    def _values(self, m: int, row: int, tensor: int) -> Array:
        """The elements of an operand as unsigned numbers."""
        r = self.gang.members[m].routine.operands[row]
        flat = self.tensors[tensor].reshape(-1).view(np.uint8)
        item = BY_CODE[int(r[COL["dtype"]])].itemsize
        values: Array = np.array(_strided(flat, r, item, 1)).view(f"u{item}")[..., 0]
        return values

    def _spots(self, marks: Array, m: int, row: int, granule: int) -> Array:
        """The marks of an operand's elements, [P, F..., granules of an element]."""
        r = self.gang.members[m].routine.operands[row]
        return _strided(marks, r, BY_CODE[int(r[COL["dtype"]])].itemsize // granule, granule)

    def _tell(self, m: int, at: int, other: int, there: int, tensor: int, count: int) -> None:
        here, place = self.gang.members[m], self.gang.members[other].place
        lines = where(here.routine, at), where(self.gang.members[other].routine, there)
        if lines in self._told:
            return
        self._told.add(lines)
        name = next(here.routine.buffers[p].name for p, t in zip(here.routine.params, here.tensors) if t == tensor)
        error = ConstraintError(
            f"both cores use the same part of {name!r} and nothing orders them",
            code="TRN442",
            where=lines[0],
            limit="one core at a time, with a meeting of both in between",
            got=f"{count} elements, here on {here.place} and on {place} at {lines[1]}",
            chip=self.gang.target,
            remedy="let each core write its own part, or meet with nisa.core_barrier before the other part is used",
        )
        self.found.append(error)


def _strided(memory: Array, record: Array, width: int, unit: int) -> Array:
    """[P, F..., width] of a flat array whose entries stand for `unit` bytes each."""
    item = BY_CODE[int(record[COL["dtype"]])].itemsize
    start = int(record[COL["offset"]] + record[COL["start_partition"]] * record[COL["partition_step"]]) // unit
    shape = (int(record[COL["partitions"]]), *(int(n) for n in record[_COUNTS]), width)
    steps = (int(record[COL["partition_step"]]), *(int(s) * item for s in record[_STEPS]), unit)
    strides = tuple(step // unit * memory.itemsize for step in steps)
    return np.lib.stride_tricks.as_strided(memory[start:], shape, strides)
