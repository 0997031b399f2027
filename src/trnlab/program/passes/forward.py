# SPDX-License-Identifier: Apache-2.0
"""Copy propagation: what VectorE and ScalarE can read in PSUM is not copied to SBUF first.

    scores[:, block] = nisa.tensor_copy(product)      # product lies in PSUM
    nisa.tensor_reduce(nl.max, scores[:, block], ...) # reads it there

A kernel that keeps its products in an SBUF buffer, or a broadcast over the partitions, which is a matmul with ones,
asks for copies that the hardware's compiler leaves out. A copy goes when it changes no format and all its readers may
read PSUM. A tile then occupies its bank up to its last reader; at most `forward_banks` banks are kept so at a time,
and where there would be more, the oldest tile is copied after all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trnlab import isa
from trnlab.errors import ConstraintError
from trnlab.isa.base import Engine, Memory
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.access import AP, MAX_FREE_DIMS, operand_records, pattern, pattern_of
from trnlab.program.passes.draft import ATTR, OPCODE, OWNER, READS, WORK, WRITES, Bools, Draft, Ints
from trnlab.program.routine import COL
from trnlab.program.strided import Dims

_ENGINE = 1  # column of `Draft.rows`
_FIRST, _LAST, _START, _ROWS = (COL[name] for name in ("first", "last", "start_partition", "partitions"))


def forward_copies(draft: Draft) -> None:
    """Bind the readers of copies out of PSUM to what was copied, and delete those copies."""
    if draft.b.prints:
        return
    recording = _Recording.of(draft)
    copies = _copies(draft, recording)
    if not len(copies):
        return
    readers = _readers(draft, recording, copies)
    kept = _Kept(draft.policy.forward_banks)
    rebinding = _Rebinding(draft, recording)
    for copy in sorted(readers, key=lambda c: recording.place[c]):
        before = rebinding.bind(copy, readers[copy])
        if before is not None:
            draft.deleted[copy] = True
            for other in kept.add(_held(draft, recording, copy, readers[copy], before)):
                rebinding.restore(other.before)
                draft.deleted[other.copy] = False
    rebinding.finish()


class _Recording(NamedTuple):
    """Operand records, and when: per instruction its place in the order, -1 for those deleted."""

    records: Ints
    place: Ints

    @classmethod
    def of(cls, draft: Draft) -> _Recording:
        place = np.full(len(draft), -1)
        alive = draft.order[~draft.deleted[draft.order]]
        place[alive] = np.arange(len(alive))
        return cls(operand_records(draft.references), place)


def _copies(draft: Draft, recording: _Recording) -> Ints:
    """Copies from PSUM to SBUF that change neither format nor layout, of tiles that nobody writes afterwards."""
    first, records, place = draft.first, recording.records, recording.place
    copies: Ints = np.flatnonzero((draft.rows[:, OPCODE] == isa.REGISTRY["tensor_copy"].opcode) & (place >= 0))
    copies = copies[np.diff(first)[copies] == 2]
    if not len(copies):
        return copies
    movable = np.zeros(len(draft.buffers), np.bool_)
    movable[list(draft.movable)] = True
    memory = np.array([int(b.memory) for b in draft.buffers])
    dst, src = first[copies], first[copies] + 1
    into, out_of = draft.owner[dst], draft.owner[src]
    good = (memory[into] == Memory.SBUF) & (memory[out_of] == Memory.PSUM) & movable[into] & movable[out_of]
    for column in ("dtype", "partitions"):
        good &= records[dst, COL[column]] == records[src, COL[column]]
    good &= _packed(records[dst]) & _packed(records[src])
    writes = np.flatnonzero((draft.access & WRITES != 0) & (place[draft.of] >= 0))
    last_write = np.full(len(draft.buffers), -1)
    np.maximum.at(last_write, draft.owner[writes], place[draft.of[writes]])
    good &= last_write[out_of] < place[copies]
    tied = [i for pair in draft.b.dependencies for i in pair]
    found: Ints = copies[good & ~np.isin(copies, tied)]
    return found


def _packed(records: Ints) -> Bools:
    """Whether elements lie side by side in the order in which they are taken."""
    packed, step = np.ones(len(records), np.bool_), np.ones(len(records), np.int64)
    for d in reversed(range(MAX_FREE_DIMS)):
        count = records[:, COL[f"count{d}"]]
        packed &= (count == 1) | (records[:, COL[f"step{d}"]] == step)
        step = step * count
    return packed


class _Results(NamedTuple):
    """What copies write, sorted by address: the copy, its operand, the first and last byte (tiles are far apart)."""

    copy: Ints
    operand: Ints
    first: Ints
    last: Ints


def _readers(draft: Draft, recording: _Recording, copies: Ints) -> dict[int, list[int]]:
    """Readers of each copy whose result is used by reading parts of it only: the operands that do."""
    dst, room = draft.first[copies], int(max(b.nbytes for b in draft.buffers)) + 1
    base = draft.owner * room
    low, high = base + recording.records[:, _FIRST], base + recording.records[:, _LAST]
    order = np.argsort(low[dst], kind="stable")
    results = _Results(copies[order], dst[order], low[dst[order]], high[dst[order]])
    others = _other_accesses(draft, recording, dst)
    at, last = (np.searchsorted(results.first, key[others], side="right") - 1 for key in (low, high))
    begins_inside = (at >= 0) & (low[others] <= results.last[at])
    reads = begins_inside & (last == at) & (high[others] <= results.last[at])
    reads &= _reads_part(draft, recording, others, results.copy[at], results.operand[at])
    wrong = (begins_inside | (last > at)) & ~reads
    spoilt = np.zeros(len(copies) + 1, np.int64)  # differences of how many accesses spoil a result
    np.add.at(spoilt, np.where(begins_inside, at, at + 1)[wrong], 1)
    np.add.at(spoilt, last[wrong] + 1, -1)
    shared = np.flatnonzero(results.first[1:] <= results.last[:-1])  # with the next result
    np.add.at(spoilt, shared, 1)
    np.add.at(spoilt, np.minimum(shared + 2, len(copies)), -1)
    good = np.cumsum(spoilt)[:-1] == 0
    found: dict[int, list[int]] = {}
    for k, n in zip(others[reads].tolist(), at[reads].tolist()):
        if good[n]:
            found.setdefault(int(results.copy[n]), []).append(k)
    return found


def _other_accesses(draft: Draft, recording: _Recording, results: Ints) -> Ints:
    """Operands of the tiles that these results lie in, the results themselves left out."""
    tiles = np.zeros(len(draft.buffers), np.bool_)
    tiles[draft.owner[results]] = True
    mine = tiles[draft.owner] & (recording.place[draft.of] >= 0)
    mine[results] = False
    return np.flatnonzero(mine)


def _reads_part(draft: Draft, recording: _Recording, operands: Ints, copies: Ints, results: Ints) -> Bools:
    """Whether each operand is read only, after the copy, and in partitions that the copy has written."""
    records, place = recording.records, recording.place
    after = (draft.access[operands] == READS) & (place[draft.of[operands]] > place[copies])
    offset = records[operands, _START] - records[results, _START]
    found: Bools = after & (offset >= 0) & (offset + records[operands, _ROWS] <= records[results, _ROWS])
    return found


class _Rebinding:
    """Binds operands to other memory, as far as the chip allows. Works on lists; `finish` changes the draft."""

    def __init__(self, draft: Draft, recording: _Recording) -> None:
        self.draft = draft
        self.references: list[list[int]] = draft.references.tolist()
        self.rows: list[list[int]] = draft.rows.tolist()
        columns = [COL[name] for name in ("buffer", "start_partition", "offset")]
        self.places: list[list[int]] = recording.records[:, columns].tolist()
        self.of, self.first = draft.of_list, draft.first_list
        self.forms: dict[int, int] = {}  # of each pattern, the same in PSUM; -1 where an index reaches further
        self.legal: dict[Any, int] = {}  # what decides it: number of the work, -1 where the chip refuses
        self.changed: set[int] = set()

    def bind(self, copy: int, readers: list[int]) -> list[tuple[int, list[int]]] | None:
        """Let these operands read what `copy` copies. Returns what they were, None where one of them may not."""
        first = self.first[copy]
        (_, to_start, to_offset), (source, start, offset) = self.places[first], self.places[first + 1]
        before = [(k, self.references[k]) for k in readers]
        for k, (role, form, _, own_start, own_offset) in before:
            moved = [role, self._form(form), source, own_start + start - to_start, own_offset + offset - to_offset]
            self.references[k] = moved
        for i in {self.of[k] for k in readers}:
            work = self._work(i)
            if work < 0:
                self.restore(before)
                return None
            self.rows[i][WORK] = work
        self.changed.update(readers)
        return before

    def restore(self, before: list[tuple[int, list[int]]]) -> None:
        """Take a binding back."""
        for k, reference in before:
            self.references[k] = reference
        for i in {self.of[k] for k, _ in before}:
            self.rows[i][WORK] = self._work(i)

    def finish(self) -> None:
        """Write what has changed into the draft."""
        for k in self.changed:
            self.draft.references[k] = self.references[k]
            self.draft.rows[self.of[k], WORK] = self.rows[self.of[k]][WORK]

    def _form(self, number: int) -> int:
        """The number of a pattern's form in PSUM."""
        if number not in self.forms:
            form = pattern(number)
            code, partitions, step, *free = form.columns
            moved = pattern_of(int(Memory.PSUM), code, partitions, step, _dims(free))
            self.forms[number] = moved.number if (moved.low, moved.high) == (form.low, form.high) else -1
        return self.forms[number]

    def _work(self, i: int) -> int:
        """The work of an instruction with its operands as they are now, -1 where the chip would refuse it."""
        opcode, engine, attr = (self.rows[i][column] for column in (OPCODE, _ENGINE, ATTR))
        operands = self.references[self.first[i] : self.first[i + 1]]
        buffers = self.draft.buffers
        key = (
            opcode,
            engine,
            attr,
            *(
                (
                    role,
                    form,
                    buffers[owner].memory,
                    buffers[owner].first_partition + start,
                    offset if buffers[owner].memory is Memory.PSUM else offset % 64,
                )
                for role, form, owner, start, offset in operands
            ),
        )
        if key not in self.legal:
            self.legal[key] = self._checked(opcode, engine, attr, operands)
        return self.legal[key]

    def _checked(self, opcode: int, engine: int, attr: int, operands: list[list[int]]) -> int:
        """As `_work`, by the rules of the instruction."""
        instr, b = isa.BY_OPCODE[opcode], self.draft.b
        if any(form < 0 for _, form, *_ in operands):
            return -1
        named = {}
        for role, form, owner, start, offset in operands:
            code, partitions, step, *free = pattern(form).columns
            ap = AP(self.draft.buffers[owner], BY_CODE[code], start, partitions, step, offset, _dims(free))
            if ap.extent() != (offset + pattern(form).low, offset + pattern(form).high):
                return -1  # an index reaches further than the pattern
            named[instr.operands[role].name] = ap
        try:
            return b.work_index(isa.validate(instr, named, dict(b.attributes[attr]), Engine(engine), b.chip, None))
        except ConstraintError:
            return -1


def _dims(free: list[int]) -> Dims:
    """Steps and counts of the free dimensions, without those in front that are padding."""
    dims = list(zip(free[::2], free[1::2]))
    while dims and dims[0] == (0, 1):
        dims.pop(0)
    return tuple(dims)


@dataclass(eq=False)
class _Held:
    """A copy that was left out."""

    copy: int
    tile: int  # in PSUM, of so many banks, read there from place `since` to `until`
    banks: int
    since: int
    until: int
    before: list[tuple[int, list[int]]]  # what its readers were


def _held(
    draft: Draft, recording: _Recording, copy: int, readers: list[int], before: list[tuple[int, list[int]]]
) -> _Held:
    tile = int(draft.references[draft.first_list[copy] + 1, OWNER])
    banks = -(-draft.buffers[tile].nbytes // draft.b.chip.psum.bank_bytes_per_partition)
    until = max(int(recording.place[draft.of_list[k]]) for k in readers)
    return _Held(copy, tile, banks, int(recording.place[copy]), until, before)


class _Kept:
    """The tiles that stay in at most so many banks of PSUM for their readers."""

    def __init__(self, banks: int) -> None:
        self.banks = banks
        self.alive: list[_Held] = []

    def add(self, new: _Held) -> list[_Held]:
        """One more, later than all others; returns those that are to be copied after all."""
        self.alive = [*(held for held in self.alive if held.until > new.since), new]
        given_up: list[_Held] = []
        while sum({held.tile: held.banks for held in self.alive}.values()) > self.banks:
            tile = self.alive[0].tile
            given_up += [held for held in self.alive if held.tile == tile]
            self.alive = [held for held in self.alive if held.tile != tile]
        return given_up
