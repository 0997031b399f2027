# SPDX-License-Identifier: Apache-2.0
"""Dependencies that outlive a call: HBM tensors, the bytes of SBUF, and PSUM banks.

Inside a call, slots are the routine's own. Between calls the state lives in "regions", runs of bytes cut into
granules: one per HBM tensor (as fine as the finest routine that uses it), one for the scratch memory, one for SBUF.
Entering a call gathers the granules into the routine's slots, leaving it scatters them back; where the two are cut
differently, a slot waits for every granule it touches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import Memory
from trnlab.loops import compiled
from trnlab.program.routine import Call, Program, Routine
from trnlab.sim.timing.order import DMA, NEVER, READ_AT, WROTE, Ints
from trnlab.sim.timing.order import slots as new_slots
from trnlab.sim.timing.plan import TimingPlan

_SBUF_GRANULE = 64  # bytes per partition; tiles start on multiples of it
_MOST_GRANULES = 1 << 16  # of the scratch memory


@dataclass
class SharedBytes:
    """Bytes shared by calls: per granule the last write and the last read, and the instructions that did them."""

    granule: int
    write: Ints
    write_index: Ints
    read: Ints
    read_index: Ints


def _region(nbytes: int, granule: int) -> SharedBytes:
    count = max(-(-nbytes // granule), 1)
    never, nobody = np.full(count, NEVER, np.int64), np.full(count, -1, np.int64)
    return SharedBytes(granule, never, nobody, never.copy(), nobody.copy())


@dataclass(frozen=True)
class _Piece:
    """Slots from `first` on of a routine as bytes of a region: slot first + i has bytes in [low[i], high[i])."""

    region: SharedBytes
    first: int
    low: Ints
    high: Ints


class Memories:
    """The regions of a program."""

    def __init__(self, program: Program, plans: Sequence[TimingPlan], chip: Chip) -> None:
        self.program, self.plans = program, plans
        self._row = {t.id: i for i, t in enumerate(program.tensors)}
        self._extent = np.array([(t.address, t.address + t.nbytes) for t in program.tensors], np.int64).reshape(-1, 2)
        self._extent[self._extent[:, 0] < 0] = -1  # bound elsewhere: it shares no bytes with the arena
        self._touched = np.zeros(len(program.tensors), np.bool_)  # used so far, and placed in the arena
        self._granules = self._finest()
        self._regions: dict[int, SharedBytes] = {}
        self._sbuf = _region(int(chip.sbuf.bytes_per_partition.value), _SBUF_GRANULE)
        finest = [r.buffers[i].slot_bytes for r, p in zip(program.routines, plans) for i in p.scratch]
        top = program.scratch_bytes
        self._scratch = _region(top, max(min(finest, default=1), -(-top // _MOST_GRANULES)))
        self._psum = new_slots(chip.psum.num_banks)

    @classmethod
    def of_cores(cls, program: Program, plans: Sequence[TimingPlan], chip: Chip, cores: int) -> list[Memories]:
        """The regions as each of several cores has them: tensors in HBM are shared, all else is a core's own."""
        found = [cls(program, plans, chip) for _ in range(cores)]
        for memory in found[1:]:
            memory._regions, memory._touched = found[0]._regions, found[0]._touched
        return found

    def _finest(self) -> dict[int, int]:
        """Bytes of a granule of each tensor."""
        finest: dict[int, int] = {}
        for call in {(call.routine, call.args): call for call in self.program.calls}.values():
            routine = self.program.routines[call.routine]
            for tensor, buffer in zip(call.args, routine.params, strict=True):
                finest[tensor] = min(finest.get(tensor, 1 << 62), routine.buffers[buffer].slot_bytes)
        return finest

    def _tensor(self, tensor: int) -> SharedBytes:
        """The region of a tensor; on first use it waits for the tensors that had its bytes of the arena before."""
        region = self._regions.get(tensor)
        if region is None:
            row = self._row[tensor]
            me, (low, high) = self.program.tensors[row], self._extent[row]
            region = self._regions[tensor] = _region(me.nbytes, self._granules[tensor])
            overlap = self._touched & (self._extent[:, 0] < high) & (low < self._extent[:, 1])
            for other in np.flatnonzero(overlap):
                _inherit(region, self._regions[self.program.tensors[other].id])
            self._touched[row] = me.address >= 0
        return region

    def _pieces(self, call: Call, routine: Routine) -> Iterable[_Piece]:
        offsets = call.offsets or (0,) * len(call.args)
        for tensor, offset, index in zip(call.args, offsets, routine.params, strict=True):
            yield self._piece(routine, index, self._tensor(tensor), offset)
        p = self.plans[call.routine]
        for index in p.scratch:
            yield self._piece(routine, index, self._scratch, routine.buffers[index].address)
        low, high = _tiles_of(routine, p)
        yield _Piece(self._sbuf, routine.num_psum, low + call.sbuf_base, high + call.sbuf_base)

    @staticmethod
    def _piece(routine: Routine, index: int, region: SharedBytes, address: int) -> _Piece:
        buffer = routine.buffers[index]
        if buffer.grid is not None:
            low, high = buffer.grid.extents()
            return _Piece(region, routine.hbm_slot[index], address + low, address + np.minimum(high, buffer.nbytes))
        cuts = address + np.append(np.arange(0, buffer.nbytes, buffer.slot_bytes), buffer.nbytes)
        return _Piece(region, routine.hbm_slot[index], cuts[:-1], cuts[1:])

    def enter(self, call: Call, routine: Routine) -> Ints:
        """The slots of a call, as earlier calls have left them. What they did counts as done by DMA, for which
        everybody waits.
        """
        slots = new_slots(routine.num_slots)
        slots[: routine.num_psum] = self._psum
        for piece in self._pieces(call, routine):
            r = piece.region
            _gather(piece.first, piece.low, piece.high, r.granule, r.write, r.write_index, slots, WROTE)
            _gather(piece.first, piece.low, piece.high, r.granule, r.read, r.read_index, slots, READ_AT)
        return slots

    def leave(self, call: Call, routine: Routine, slots: Ints) -> None:
        """Remember what a call has done to memory."""
        self._psum[:] = slots[: routine.num_psum]
        for piece in self._pieces(call, routine):
            r = piece.region
            _scatter(piece.first, piece.low, piece.high, r.granule, slots, WROTE, r.write, r.write_index)
            _scatter(piece.first, piece.low, piece.high, r.granule, slots, READ_AT, r.read, r.read_index)


def _tiles_of(routine: Routine, p: TimingPlan) -> tuple[Ints, Ints]:
    """Where the slots of SBUF begin and end. Those in which a routine has no tile are empty: what lies between its
    tiles and what stays in SBUF is of no business to it."""
    key = "tiles in SBUF"
    if key not in routine._memo:
        low, high = p.sbuf_cuts[:-1], p.sbuf_cuts[1:].copy()
        tiles = [b for b in routine.buffers if b.memory is Memory.SBUF]
        used = np.zeros(len(low), np.bool_)
        for b in {(b.address, b.address + b.nbytes) for b in tiles}:
            used |= (low < b[1]) & (b[0] < high)
        high[~used] = low[~used]
        routine._memo[key] = low, high
    found: tuple[Ints, Ints] = routine._memo[key]
    return found


def _inherit(region: SharedBytes, old: SharedBytes) -> None:
    """Let all of a region wait for all that was done to another that had the same bytes."""
    for times, indices in ((old.write, old.write_index), (old.read, old.read_index)):
        last = int(times.argmax())
        if times[last] > region.write[0]:
            region.write[:], region.write_index[:] = times[last], indices[last]


@compiled
def _gather(
    first: int, low: Ints, high: Ints, granule: int, shared: Ints, shared_index: Ints, slots: Ints, column: int
) -> None:
    """The latest of the granules that each slot touches."""
    for i in range(len(low)):
        s = first + i
        for g in range(low[i] // granule, (high[i] - 1) // granule + 1):
            if shared[g] > slots[s, column]:
                slots[s, column], slots[s, column + 1] = shared[g], shared_index[g] * 8 + DMA


@compiled
def _scatter(
    first: int, low: Ints, high: Ints, granule: int, slots: Ints, column: int, shared: Ints, shared_index: Ints
) -> None:
    """The latest of the slots that touch each granule."""
    for i in range(len(low)):
        s = first + i
        for g in range(low[i] // granule, (high[i] - 1) // granule + 1):
            if slots[s, column] > shared[g]:
                shared[g], shared_index[g] = slots[s, column], slots[s, column + 1] >> 3
