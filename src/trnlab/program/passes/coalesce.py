# SPDX-License-Identifier: Apache-2.0
"""Coalescing: what iterations load from, or store to, places at equal distances in HBM is one transfer.

    for i in nl.affine_range(4):
        nl.store(out[i], tile)              # four stores of [128, 128]: one of [128, 4, 128]

The tiles become columns of one. A transfer is made of as many as `coalesce_bytes` allow: the profiles show merged
transfers of two, four and eight tiles, and none that is larger. So are loads in the inner loop of a matmul, of blocks
that lie behind each other along the sum (ADR 122). Transfers element by element stay apart: public kernels that add
vectors in tiles of one element a partition take the time of each (K0355, K0366, K0367), and what is transposed on its
way has as many descriptors as elements.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from trnlab import isa
from trnlab.errors import ConstraintError
from trnlab.isa.base import Engine, Memory
from trnlab.isa.collectives.meeting import Meeting
from trnlab.numerics.dtypes import BY_CODE, DType
from trnlab.program.access import AP, MAX_FREE_DIMS, Buffer, forms, pattern, pattern_of
from trnlab.program.passes.draft import ATTR, OFFSET, OPCODE, PATTERN, START, WORK, WRITES, Draft
from trnlab.program.routine import COL, OPEN_ORDER
from trnlab.program.strided import Dims

_ENGINE, _LINE, _OPEN = 1, 5, 6  # columns of `Draft.rows`
_NEAR = 2048  # instructions between the first and the last of one transfer


class Move(NamedTuple):
    """A transfer: instruction, its operands on chip and in HBM, when it is its turn."""

    at: int
    chip: int
    hbm: int
    place: int


class BufferUses(NamedTuple):
    """Operands of buffers, those of each buffer together and in order: when, first and last byte, whether it is
    written, of which instruction. They are columns, since there may be millions.

    begin: by buffer, where its own begin, and behind the last one where they end.
    """

    place: list[int]
    first: list[int]
    last: list[int]
    writes: list[bool]
    at: list[int]
    begin: list[int]


class OperandShape(NamedTuple):
    """The form of an operand: as in an access pattern, without dimensions of one element."""

    dtype: DType
    partitions: int
    partition_step: int
    dims: Dims


class CoalescedTransfer(NamedTuple):
    """What a run of transfers becomes: amount of work, patterns of destination and source."""

    work: int
    patterns: tuple[int, int]


def coalesce_transfers(draft: Draft) -> None:
    """Make one transfer of neighbouring ones: loads first, then stores."""
    meetings = [code for code, instr in isa.BY_OPCODE.items() if isinstance(instr, Meeting)]
    if draft.b.prints or draft.b.dependencies or np.isin(draft.rows[:, OPCODE], meetings).any():
        return
    for storing in (False, True):
        search = _Search(draft, storing)
        _apply(search, search.runs())


class _Search:
    """The runs of transfers in one direction that can be merged."""

    def __init__(self, draft: Draft, storing: bool) -> None:
        self.draft, self.storing, self.buffers = draft, storing, draft.buffers
        self.taken: set[int] = set()  # tiles of runs that are complete
        self.place = np.full(len(draft), -1, np.int64)
        kept = draft.order[~draft.deleted[draft.order]]
        self.place[kept] = np.arange(len(kept))
        table, row = forms(draft.references[:, PATTERN])
        offset = draft.references[:, OFFSET]
        self.first = (table[:, COL["first"]][row] + offset).tolist()
        self.last = (table[:, COL["last"]][row] + offset).tolist()
        # Lists, since a number of an array takes several times as long to get.
        self.owner = draft.owner.tolist()
        self.candidates = self._candidates()
        self.rows = {move.at: draft.rows[move.at].tolist() for move in self.candidates}
        moved = [k for move in self.candidates for k in (move.chip, move.hbm)]
        self.references = dict(zip(moved, draft.references[moved].tolist()))
        self.uses = self._uses(sorted({self.owner[k] for k in moved}))

    def runs(self) -> list[list[Move]]:
        """Each is of transfers of one line that follow each other at equal distances."""
        by_form: dict[tuple[int, ...], list[Move]] = defaultdict(list)
        for move in self.candidates:
            by_form[self.form(move)].append(move)
        found: list[list[Move]] = []
        for moves in by_form.values():
            run: list[Move] = []
            for move in moves:
                if run and self._is_free(move) and self._extends(run, move):
                    run.append(move)
                    continue
                self._close(run, found)
                run = [move] if self._is_free(move) else []
            self._close(run, found)
        return found

    def _is_free(self, move: Move) -> bool:
        return self.owner[move.chip] not in self.taken

    def _close(self, run: list[Move], found: list[list[Move]]) -> None:
        if len(run) > 1:
            found.append(run)
            self.taken |= {self.owner[m.chip] for m in run}

    def _candidates(self) -> list[Move]:
        """Plain transfers between SBUF and HBM that may move, in order."""
        draft = self.draft
        copies = (draft.rows[:, OPCODE] == isa.REGISTRY["dma_copy"].opcode) & (self.place >= 0)
        free = np.flatnonzero(copies & (draft.rows[:, _OPEN] & OPEN_ORDER != 0))
        free = free[np.argsort(self.place[free])]
        first, memory, owner = draft.first, draft.columns().memory, draft.owner
        free = free[first[free + 1] - first[free] == 2]
        dst = first[free]
        chip, hbm = (dst + 1, dst) if self.storing else (dst, dst + 1)
        plain = (memory[owner[chip]] == int(Memory.SBUF)) & (memory[owner[hbm]] == int(Memory.HBM))
        columns = (free[plain], chip[plain], hbm[plain], self.place[free[plain]])
        return list(map(Move, *(column.tolist() for column in columns)))

    def _uses(self, wanted: list[int]) -> BufferUses:
        """Who uses these buffers."""
        draft = self.draft
        owner, of = draft.owner, draft.of
        chosen = np.zeros(len(draft.buffers), np.bool_)
        chosen[wanted] = True
        which = np.flatnonzero(chosen[owner] & (self.place[of] >= 0))
        which = which[np.lexsort((self.place[of[which]], owner[which]))]
        at, begin = of[which], np.searchsorted(owner[which], np.arange(len(draft.buffers) + 1))
        first, last = (np.array(values, np.int64)[which] for values in (self.first, self.last))
        writes = draft.access[which] & WRITES != 0
        columns = (self.place[at], first, last, writes, at, begin)
        return BufferUses(*(column.tolist() for column in columns))

    def form(self, move: Move) -> tuple[int, ...]:
        """What transfers of one run have in common."""
        tile, row = self.buffers[self.owner[move.chip]], self.rows[move.at]
        chip, hbm = self.references[move.chip], self.references[move.hbm]
        own = (tile.nbytes, tile.partitions, tile.first_partition, tile.dtype.code)
        sides = (chip[PATTERN], chip[START], hbm[PATTERN], hbm[START], self.owner[move.hbm])
        return (row[_LINE], row[_ENGINE], row[ATTR], *own, *sides)

    def _extends(self, run: list[Move], move: Move) -> bool:
        """Whether a transfer can be made with those of a run."""
        steps = self.steps(run[0], move, len(run))
        if steps is None or (len(run) > 1 and steps != self.steps(run[0], run[1], 1)):
            return False
        width = self.last[move.chip] - self.first[move.chip] + 1
        small = width * (len(run) + 1) <= self.draft.policy.coalesce_bytes
        work = self.draft.b.works[self.rows[move.at][WORK]]
        single = work.n <= work.itemsize or not _shape(self.references[move.chip][PATTERN]).dims
        if not small or single:
            return False
        if self.storing and not self._apart(move, steps[0], len(run) + 1):
            return False
        if move.place - run[0].place > _NEAR or not self._whole([*run, move]):
            return False
        return self._may_move(run, move)

    def _whole(self, run: list[Move]) -> bool:
        """Different tiles are all of theirs, used by nobody before they are loaded, and the compiler's to place."""
        tiles = [self.owner[m.chip] for m in run]
        if len(set(tiles)) == 1:
            return True
        for move, tile in zip(run, tiles):
            buffer = self.buffers[tile]
            if tile not in self.draft.movable or tiles.count(tile) > 1:
                return False
            if (self.first[move.chip], self.last[move.chip]) != (0, buffer.nbytes - 1):
                return False
            if not self.storing and self.uses.place[self.uses.begin[tile]] < move.place:
                return False
        return True

    def _apart(self, move: Move, step: int, count: int) -> bool:
        """Whether stores `step` bytes apart touch different elements: one behind the other, or all in one row."""
        shape = _shape(self.references[move.hbm][PATTERN])
        item = shape.dtype.itemsize
        row = item + sum(abs(each) * (n - 1) * item for each, n in shape.dims)
        in_row = row <= step and row + step * (count - 1) <= shape.partition_step
        return self.last[move.hbm] - self.first[move.hbm] < step or in_row

    def _may_move(self, run: list[Move], move: Move) -> bool:
        """Whether nothing in between touches what the transfers move: a load goes to the first one, stores to the
        last."""
        moved = run if self.storing else [move]
        after, before = (None, move.place) if self.storing else (run[0].place, move.place)
        own = {m.at for m in (*run, move)}
        for m in moved:
            start = m.place if after is None else after
            for k in (m.chip, m.hbm):
                written = (k == m.hbm) == self.storing  # by the transfer itself
                if self._touched(k, start, before, own, also_reads=written):
                    return False
        return True

    def _touched(self, k: int, start: int, stop: int, own: set[int], *, also_reads: bool) -> bool:
        """Whether somebody else writes (or reads) bytes of operand k in between."""
        uses, owner, first, last = self.uses, self.owner[k], self.first[k], self.last[k]
        begin, end = uses.begin[owner], uses.begin[owner + 1]
        low = bisect_right(uses.place, start, begin, end)
        high = bisect_left(uses.place, stop, low, end)
        return any(
            uses.first[n] <= last
            and first <= uses.last[n]
            and (uses.writes[n] or also_reads)
            and uses.at[n] not in own
            for n in range(low, high)
        )

    def steps(self, first: Move, move: Move, count: int) -> tuple[int, int] | None:
        """Bytes from one transfer to the next in HBM, and on chip in one tile, if `move` is `count` behind."""
        references, tile = self.references, self.owner[first.chip]
        hbm, rest = divmod(references[move.hbm][OFFSET] - references[first.hbm][OFFSET], count)
        apart = references[move.chip][OFFSET] - references[first.chip][OFFSET]
        same = self.owner[move.chip] == tile
        chip, remainder = divmod(apart, count) if same else (self.buffers[tile].nbytes, 0)
        return None if rest or remainder or hbm <= 0 or chip <= 0 else (hbm, chip)


@lru_cache(maxsize=65536)
def _shape(number: int) -> OperandShape:
    """The form of a pattern."""
    code, partitions, partition_step, *dims = pattern(number).columns
    pairs = zip(dims[::2], dims[1::2])
    return OperandShape(BY_CODE[code], partitions, partition_step, tuple(pair for pair in pairs if pair[1] > 1))


def _apply(search: _Search, runs: list[list[Move]]) -> None:
    """Put tiles side by side, and make one transfer of each run that the chip takes."""
    draft, storing = search.draft, search.storing
    forms_of: dict[Any, CoalescedTransfer | None] = {}
    made = [(run, form) for run in runs if (form := _form_of_run(search, run, forms_of)) is not None]
    group = np.full(len(draft.buffers), -1, np.int64)
    place = np.zeros(len(draft.buffers), np.int64)
    leaders: list[int] = []
    counts: list[int] = []
    for run, _ in made:
        tiles = [int(draft.owner[m.chip]) for m in run]
        if len(set(tiles)) > 1:
            group[tiles], place[tiles] = len(leaders), np.arange(len(tiles))
            leaders.append(tiles[0])
            counts.append(len(tiles))
    if leaders:
        draft.put_side_by_side(np.array(leaders), np.array(counts), group, place)
    for run, form in made:
        kept = run[-1] if storing else run[0]
        for k, origin in ((kept.chip, run[0].chip), (kept.hbm, run[0].hbm)):
            draft.references[k] = draft.references[origin]
        dst = draft.first_list[kept.at]
        draft.references[[dst, dst + 1], PATTERN] = form.patterns
        draft.rows[kept.at, WORK] = form.work
        draft.deleted[[m.at for m in run if m is not kept]] = True


def _form_of_run(
    search: _Search, run: list[Move], known: dict[Any, CoalescedTransfer | None]
) -> CoalescedTransfer | None:
    """`_merged`, once for runs of one form: loops have thousands of them."""
    tile = search.buffers[search.owner[run[0].chip]]
    key = search.form(run[0]), search.steps(run[0], run[1], 1), len(run), tile.shape, tile.kind
    if key not in known:
        known[key] = _merged(search, run)
    return known[key]


def _merged(search: _Search, run: list[Move]) -> CoalescedTransfer | None:
    """The form of one transfer of a whole run; None where it has too many dimensions, or the chip refuses it."""
    draft, steps = search.draft, search.steps(run[0], run[1], 1)
    assert steps is not None
    operands: dict[str, AP] = {}
    numbers = []
    instr, (at, chip, hbm, _) = isa.REGISTRY["dma_copy"], run[0]
    for name, k in zip(("dst", "src"), sorted((chip, hbm))):
        buffer, old = search.buffers[search.owner[k]], _shape(search.references[k][PATTERN])
        dims = _repeated(old.dims, steps[0] if k == hbm else steps[1], len(run), old.dtype.itemsize)
        if dims is None:
            return None
        start = search.references[k][START]
        room = _wider(buffer, len(run)) if k == chip else buffer
        operands[name] = AP(room, old.dtype, start, old.partitions, old.partition_step, 0, dims)
        numbers.append(
            pattern_of(int(buffer.memory), old.dtype.code, old.partitions, old.partition_step, dims).number
        )
    try:
        engine = Engine(int(draft.rows[at, _ENGINE]))
        work = isa.validate(instr, operands, draft.attributes(at), engine, draft.b.chip, None)
    except ConstraintError:
        return None
    return CoalescedTransfer(draft.b.work_index(work), (numbers[0], numbers[1]))


def _wider(tile: Buffer, count: int) -> Buffer:
    """A tile with room for more of its kind."""
    return replace(tile, nbytes=tile.nbytes * count)


def _repeated(dims: Dims, step: int, count: int, itemsize: int) -> Dims | None:
    """A pattern several times with `step` bytes in between; None where there are too many dimensions."""
    every, rest = divmod(step, itemsize)
    if dims and every == dims[0][0] * dims[0][1]:
        found = ((dims[0][0], dims[0][1] * count), *dims[1:])
    else:
        found = ((every, count), *dims)
    return None if rest or len(found) > MAX_FREE_DIMS else found
