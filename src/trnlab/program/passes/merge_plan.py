# SPDX-License-Identifier: Apache-2.0
"""Which positions of loops can be merged over iterations, and over how many.

Looks at loops only; `merge` changes the recording. Work is linear in operands and in the pieces of memory that they
touch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trnlab import isa
from trnlab.isa.base import Engine, Memory
from trnlab.isa.collectives.meeting import Meeting
from trnlab.loops import compiled
from trnlab.program.access import forms
from trnlab.program.passes.draft import (
    ATTR,
    ENGINE,
    LEFT_OPEN,
    OFFSET,
    OPCODE,
    PATTERN,
    ROLE,
    START,
    WRITES,
    Bools,
    Draft,
    Ints,
)
from trnlab.program.passes.nests import Nest
from trnlab.program.routine import COL, OPEN_ORDER
from trnlab.program.slots import distinct

NEVER = -1 << 62  # as a step: these operands do not lie at equal distances
_NONE, _STREAMED, _SCALAR = range(3)  # what an operand is to merging
# Instructions that do to several tiles side by side what they do to each.
_PIECEWISE = frozenset(
    {
        "activation",
        "memset",
        "reciprocal",
        "scalar_tensor_tensor",
        "tensor_copy",
        "tensor_copy_predicated",
        "tensor_reduce",
        "tensor_scalar",
        "tensor_tensor",
    }
)
_ROOM = 2  # groups of iterations that have room in SBUF: one that is read while the next is filled


class Code(NamedTuple):
    """What is asked of instructions and of operands."""

    opcode: Ints
    engine: Ints
    attr: Ints
    merges: Bools  # whether an instruction may be merged
    # where its operands begin. The rest is per operand.
    begins: Ints
    role: Ints
    pattern: Ints
    owner: Ints
    start: Ints
    offset: Ints
    access: Ints
    part: Ints  # _STREAMED, _SCALAR, or _NONE where it forbids merging
    elements: Ints  # per partition
    # low, high: the first and the last piece of memory that it touches, of `pieces` in all
    low: Ints
    high: Ints
    pieces: int


class Tiles(NamedTuple):
    """What is asked of buffers."""

    nbytes: Ints
    form: Ints  # equal for those that can be columns of one tile, -1 for those that cannot be
    bank: Ints  # bytes of a PSUM bank for tiles in PSUM, else 0
    sbuf: Bools  # whether it lies there


class MergePlan(NamedTuple):
    """Per position of the loops of a nest: over how many iterations its instruction is merged (0: not at all); per
    loop: how many iterations are done together; per operand of the instruction in the first iteration: how many bytes
    lie between one iteration and the next.
    """

    width: Ints
    together: Ints
    step: Ints


def fixed_instructions(draft: Draft) -> Bools:
    """Instructions that must stay where the kernel put them, in order and number."""
    fixed: Bools = draft.rows[:, LEFT_OPEN] & OPEN_ORDER == 0
    for code in np.unique(draft.rows[:, OPCODE]).tolist():
        instr = isa.BY_OPCODE[code]
        if isinstance(instr, Meeting) or any(kind.startswith("sequencer") for kind in instr.cost_kinds):
            fixed |= draft.rows[:, OPCODE] == code
    return fixed


def merging(draft: Draft) -> Bools:
    """Instructions that do to several tiles side by side what they do to each."""
    found: Bools = _parts()[1][draft.rows[:, OPCODE]]
    return found


def code_of(draft: Draft, inside: Bools) -> Code:
    """The recording as `plan` sees it. inside: instructions of inner loops, which are not merged."""
    rows, references = draft.rows, draft.references
    parts, merges = _parts()
    table, row = forms(references[:, PATTERN])
    low, high, pieces = memory_pieces(draft)
    elements = np.prod(table[:, [COL[f"count{i}"] for i in range(4)]], axis=1)[row]
    merges = merges[rows[:, OPCODE]] & ~inside
    return Code(
        rows[:, OPCODE].copy(),
        rows[:, ENGINE].copy(),
        rows[:, ATTR].copy(),
        merges,
        draft.first,
        references[:, ROLE].copy(),
        references[:, PATTERN].copy(),
        draft.owner.copy(),
        references[:, START].copy(),
        references[:, OFFSET].copy(),
        draft.access,
        parts[rows[draft.of, OPCODE], references[:, ROLE]],
        elements,
        low,
        high,
        pieces,
    )


def _parts() -> tuple[Ints, Bools]:
    """By opcode and role what an operand is to merging, and by opcode whether instructions merge at all."""
    widest = max(len(instr.operands) for instr in isa.BY_OPCODE.values())
    parts = np.full((max(isa.BY_OPCODE) + 1, widest), _NONE)
    merges = np.zeros(len(parts), np.bool_)
    for code, instr in isa.BY_OPCODE.items():
        merges[code] = instr.name in _PIECEWISE
        for role, spec in enumerate(instr.operands):
            if spec.state or spec.index_of or (spec.is_scalar and spec.role == "dst"):
                continue
            parts[code, role] = _SCALAR if spec.is_scalar else _STREAMED
    return parts, merges


def memory_pieces(draft: Draft) -> tuple[Ints, Ints, int]:
    """Memory cut wherever an access begins or ends: first and last piece of each operand, and how many there are.

    Tiles that the kernel placed may share bytes, and are the same memory here.
    """
    buffers, owner, offset = draft.columns(), draft.owner, draft.references[:, OFFSET]
    room, count = int((buffers.nbytes + buffers.address).max(initial=0)) + 1, len(draft.buffers)
    given = (buffers.memory != Memory.HBM) & (buffers.movable == 0)
    place = np.where(given, (count + buffers.memory) * room + buffers.address, np.arange(count) * room)
    table, row = forms(draft.references[:, PATTERN])
    base = place[owner] + offset
    low, high = base + table[:, COL["first"]][row], base + table[:, COL["last"]][row]
    cuts = distinct(np.concatenate([low, high + 1]))
    return np.searchsorted(cuts, low), np.searchsorted(cuts, high, side="right") - 1, len(cuts)


def tiles_of(draft: Draft) -> Tiles:
    """The buffers as `plan` sees them.

    Sums of several matmuls in PSUM keep banks of their own, and tiles that transfers fill or fetch are not put side
    by side: work on them does not wait for the last transfer.
    """
    alive, count = ~draft.deleted[draft.of], len(draft.buffers)
    products = alive & (draft.rows[draft.of, ENGINE] == Engine.TENSOR) & (draft.access & WRITES != 0)
    transfers = [code for code, instr in isa.BY_OPCODE.items() if instr.is_dma]
    moved = alive & np.isin(draft.rows[draft.of, OPCODE], transfers)
    alone = (np.bincount(draft.owner[products], minlength=count) > 1) | np.isin(np.arange(count), draft.owner[moved])
    bank = draft.b.chip.psum.bank_bytes_per_partition
    buffers = draft.columns()
    form = np.where((buffers.movable != 0) & ~alone, buffers.form, -1)
    in_psum, in_sbuf = buffers.memory == Memory.PSUM, buffers.memory == Memory.SBUF
    return Tiles(buffers.nbytes, form, np.where(in_psum, bank, 0), in_sbuf)


def plan(draft: Draft, nest: Nest, code: Code, tiles: Tiles, columns: int) -> MergePlan:
    """What to merge in the loops of a nest, into instructions of at most so many columns."""
    width = np.zeros(int(nest.positions[-1]), np.int64)
    step = np.zeros(len(code.owner), np.int64)
    together = np.ones(len(nest.length), np.int64)
    _find(nest, code, tiles, columns, width, step)
    if width.any():
        _keep_order(nest, code, width)
        _keep_room(nest, code, tiles, draft.b.sbuf_limit, draft.b.chip.psum.num_banks, width, together)
    return MergePlan(width, together, step)


@compiled
def _find(nest: Nest, code: Code, tiles: Tiles, columns: int, width: Ints, step: Ints) -> None:  # pragma: no cover
    """Fill in width and step where all iterations have the same instruction at equal distances."""
    seen, turn = np.zeros(tiles.nbytes.shape[0], np.int64), 0
    for loop in range(nest.length.shape[0]):
        first, last = nest.iterations[loop], nest.iterations[loop + 1]
        same = np.empty(last - first, np.int64)
        for p in range(nest.length[loop]):
            same[0] = nest.ids[nest.match[nest.positions[loop] + p]]
            if not code.merges[same[0]]:
                continue
            for i in range(1, last - first):
                same[i] = nest.ids[nest.begin[first + i] + p]
            width[nest.positions[loop] + p] = _width(code, tiles, columns, same, step, seen, turn)
            turn += code.begins[same[0] + 1] - code.begins[same[0]]


@compiled
def _width(
    code: Code, tiles: Tiles, columns: int, same: Ints, step: Ints, seen: Ints, turn: int
) -> int:  # pragma: no cover
    """How many of these instructions, one of each iteration, may be one: all, as many as have their tiles in one bank
    of PSUM, or none (0).
    """
    one, count, widest = same[0], same.shape[0], 0
    for i in range(1, same.shape[0]):
        if not _alike(code, one, same[i]):
            return 0
    for k in range(code.begins[one], code.begins[one + 1]):
        turn += 1
        step[k] = _step(code, tiles, same, k - code.begins[one], seen, turn)
        tile = code.owner[k]
        if step[k] == NEVER or code.part[k] == 0 or (code.part[k] == 2 and step[k] != 0):
            return 0
        if code.part[k] == 1:
            widest = max(widest, code.elements[k])
            if tiles.bank[tile] and code.owner[code.begins[same[1]] + k - code.begins[one]] != tile:
                count = min(count, tiles.bank[tile] // tiles.nbytes[tile])
    return int(count) if count > 1 and widest * count <= columns else 0


@compiled
def _alike(code: Code, one: int, other: int) -> bool:  # pragma: no cover
    """Whether two instructions differ only in where their operands lie."""
    begin, shift = code.begins[one], code.begins[other] - code.begins[one]
    size = code.begins[one + 1] - begin
    if code.opcode[one] != code.opcode[other] or code.engine[one] != code.engine[other]:
        return False
    if code.attr[one] != code.attr[other] or code.begins[other + 1] - code.begins[other] != size:
        return False
    for k in range(begin, begin + size):
        if code.role[k] != code.role[k + shift] or code.pattern[k] != code.pattern[k + shift]:
            return False
        if code.start[k] != code.start[k + shift]:
            return False
    return True


@compiled
def _step(code: Code, tiles: Tiles, same: Ints, operand: int, seen: Ints, turn: int) -> int:  # pragma: no cover
    """Bytes between an operand of one iteration and of the next; NEVER where that is not always the same.

    Tiles that each iteration has for itself lie side by side.
    """
    k, other = code.begins[same[0]] + operand, code.begins[same[1]] + operand
    tile = code.owner[k]
    if code.owner[other] == tile:
        step = code.offset[other] - code.offset[k]
        for i in range(1, same.shape[0]):
            k = code.begins[same[i]] + operand
            if code.owner[k] != tile or code.offset[k] - code.offset[code.begins[same[i - 1]] + operand] != step:
                return NEVER
        return int(step)
    for i in range(same.shape[0]):
        at = code.begins[same[i]] + operand
        mine = code.owner[at]
        if tiles.form[mine] < 0 or tiles.form[mine] != tiles.form[tile] or code.offset[at] != code.offset[k]:
            return NEVER
        if seen[mine] == turn:
            return NEVER
        seen[mine] = turn
    return int(tiles.nbytes[tile])


@compiled
def _keep_order(nest: Nest, code: Code, width: Ints) -> None:  # pragma: no cover
    """Merge nothing that would swap two accesses of which one writes.

    Around a merged position, an iteration's later instructions come after the earlier ones of all iterations. So none
    may lie between an access and one that follows it in a later iteration, but at the same position or before.
    """
    state = np.full((code.pieces, 6), -1, np.int64)  # loop, iteration; last slot of writes, of reads; before: same
    for loop in range(nest.length.shape[0]):
        size, top = nest.length[loop], nest.positions[loop]
        if not some(width, top, top + size):
            continue
        crossed = np.zeros(2 * size + 3, np.int64)
        for i in range(nest.iterations[loop], nest.iterations[loop + 1]):
            for at in range(nest.begin[i], nest.end[i]):
                one, slot = nest.ids[at], nest.slot[at]
                for k in range(code.begins[one], code.begins[one + 1]):
                    latest = -1
                    for piece in range(code.low[k], code.high[k] + 1):
                        latest = max(latest, _touch(state[piece], loop, i, slot, code.access[k]))
                    if latest >= slot:
                        crossed[slot] += 1
                        crossed[latest + 1] -= 1
        depth = 0
        for slot in range(2 * size + 1):
            depth += crossed[slot]
            if depth and slot % 2:
                width[top + slot // 2] = 0


@compiled
def _touch(state: Ints, loop: int, iteration: int, slot: int, access: int) -> int:  # pragma: no cover
    """Note an access to a piece of memory; returns the last slot at which earlier iterations conflict with it."""
    if state[0] != loop:
        state[0], state[2], state[3], state[4], state[5] = loop, -1, -1, -1, -1
    elif state[1] != iteration:
        state[4], state[5] = max(state[4], state[2]), max(state[5], state[3])
        state[2], state[3] = -1, -1
    state[1] = iteration
    latest = state[4]
    if access & 2:
        latest = max(latest, state[5])
        state[2] = max(state[2], slot)
    if access & 1:
        state[3] = max(state[3], slot)
    return int(latest)


@compiled
def some(values: Ints, begin: int, end: int) -> bool:  # pragma: no cover
    """Whether any of values[begin:end] is not zero; `any` of NumPy would be compiled by way of Numba's C library."""
    found = False
    for i in range(begin, end):
        found = found or values[i] != 0
    return found


@compiled
def _keep_room(
    nest: Nest, code: Code, tiles: Tiles, sbuf: int, banks: int, width: Ints, together: Ints
) -> None:  # pragma: no cover
    """Do only so many iterations together that what they fill before a merged position has room: in SBUF beside the
    tiles that several iterations use, those of one iteration, and as many of the iterations that follow.
    """
    count = tiles.nbytes.shape[0]
    user, begin, end = np.full(count, -1, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    for loop in range(nest.length.shape[0]):
        size, top = nest.length[loop], nest.positions[loop]
        if not some(width, top, top + size):
            continue
        first, last = nest.iterations[loop], nest.iterations[loop + 1]
        for i in range(first, last):
            _note_uses(nest, code, i, first, user, begin, end)
        room = sbuf
        for tile in range(count):
            if tiles.sbuf[tile] and (user[tile] == first + 1 or user[tile] == -2 - first):
                room -= tiles.nbytes[tile]
        waiting, filled = np.zeros(2 * size + 3, np.int64), np.zeros(2 * size + 3, np.int64)
        for at in range(nest.begin[first + 1], nest.end[first + 1]):
            for k in range(code.begins[nest.ids[at]], code.begins[nest.ids[at] + 1]):
                tile = code.owner[k]
                if user[tile] != first + 1:
                    continue
                user[tile] = -1
                if end[tile] == begin[tile]:
                    continue
                if tiles.sbuf[tile]:
                    waiting[begin[tile] + 1] += tiles.nbytes[tile]
                    waiting[end[tile]] -= tiles.nbytes[tile]
                elif tiles.bank[tile]:
                    needed = -(-tiles.nbytes[tile] // tiles.bank[tile])
                    filled[begin[tile] + 1] += needed
                    filled[end[tile]] -= needed  # where it may be what is merged
                    filled[end[tile] + 1] += needed
        for slot in range(1, 2 * size + 3):
            waiting[slot] += waiting[slot - 1]
            filled[slot] += filled[slot - 1]
        together[loop] = _limit(width[top : top + size], waiting, filled, max(room, 0) // _ROOM, banks)


@compiled
def _note_uses(
    nest: Nest, code: Code, iteration: int, first: int, user: Ints, begin: Ints, end: Ints
) -> None:  # pragma: no cover
    """Note which iteration uses a tile, the only one of its loop, and from which slot to which.

    Tiles that several iterations use have a user that is none, -2 - first.
    """
    for at in range(nest.begin[iteration], nest.end[iteration]):
        for k in range(code.begins[nest.ids[at]], code.begins[nest.ids[at] + 1]):
            tile = code.owner[k]
            if user[tile] < first and user[tile] != -2 - first:
                user[tile], begin[tile] = iteration, nest.slot[at]
            elif user[tile] != iteration:
                user[tile] = -2 - first
            end[tile] = nest.slot[at]


@compiled
def _limit(width: Ints, waiting: Ints, filled: Ints, sbuf: int, banks: int) -> int:  # pragma: no cover
    """Merge over as many iterations as have room: bytes of tiles that wait, banks that are filled, by slot.

    Returns how many are done together.
    """
    most, lowest = 1, 1 << 30
    for p in range(width.shape[0]):
        slot, room = 2 * p + 1, 1 << 30
        if waiting[slot]:
            room = sbuf // waiting[slot]
        if filled[slot]:
            room = min(room, banks // filled[slot])
        if room < 2:
            width[p] = 0
        if width[p]:
            most, lowest = max(most, width[p]), min(lowest, room)
    for p in range(width.shape[0]):
        width[p] = min(width[p], lowest)
    return min(most, lowest)
