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
from numba import njit

from trnlab.chips.spec import Chip
from trnlab.program.routine import Call, Program, Routine
from trnlab.sim.timing.order import DMA, NEVER, Ints, Slots
from trnlab.sim.timing.plan import Plan

_SBUF_GRANULE = 64  # bytes per partition; tiles start on multiples of it
_MOST_GRANULES = 1 << 16  # of the scratch memory


@dataclass
class Region:
    """Bytes shared by calls: per granule the last write and the last read, and the instructions that did them."""

    granule: int
    write: Ints
    write_index: Ints
    read: Ints
    read_index: Ints


def _region(nbytes: int, granule: int) -> Region:
    count = max(-(-nbytes // granule), 1)
    never, nobody = np.full(count, NEVER, np.int64), np.full(count, -1, np.int64)
    return Region(granule, never, nobody, never.copy(), nobody.copy())


@dataclass(frozen=True)
class _Piece:
    """Slots [first, first + count) of a routine as bytes of a region: slot i is [cuts[i], cuts[i + 1])."""

    region: Region
    first: int
    cuts: Ints


class Memories:
    """The regions of a program."""

    def __init__(self, program: Program, plans: Sequence[Plan], chip: Chip) -> None:
        self.program, self.plans = program, plans
        self._row = {t.id: i for i, t in enumerate(program.tensors)}
        self._extent = np.array([(t.address, t.address + t.nbytes) for t in program.tensors], np.int64).reshape(-1, 2)
        self._touched = np.zeros(len(program.tensors), np.bool_)  # used so far, and placed in the arena
        self._granules = self._finest()
        self._regions: dict[int, Region] = {}
        self._sbuf = _region(int(chip.sbuf.bytes_per_partition.value), _SBUF_GRANULE)
        finest = [r.buffers[i].slot_bytes for r, p in zip(program.routines, plans) for i in p.scratch]
        top = max((r.scratch_bytes for r in program.routines), default=0)
        self._scratch = _region(top, max(min(finest, default=1), -(-top // _MOST_GRANULES)))
        self._psum = Slots(chip.psum.num_banks)

    def _finest(self) -> dict[int, int]:
        """Bytes of a granule of each tensor."""
        finest: dict[int, int] = {}
        for call in {(call.routine, call.args): call for call in self.program.calls}.values():
            routine = self.program.routines[call.routine]
            for tensor, buffer in zip(call.args, routine.params, strict=True):
                finest[tensor] = min(finest.get(tensor, 1 << 62), routine.buffers[buffer].slot_bytes)
        return finest

    def _tensor(self, tensor: int) -> Region:
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
        for tensor, index in zip(call.args, routine.params, strict=True):
            yield self._piece(routine, index, self._tensor(tensor), 0)
        p = self.plans[call.routine]
        for index in p.scratch:
            yield self._piece(routine, index, self._scratch, routine.buffers[index].address)
        yield _Piece(self._sbuf, routine.num_psum, p.sbuf_cuts + call.sbuf_base)

    @staticmethod
    def _piece(routine: Routine, index: int, region: Region, address: int) -> _Piece:
        buffer = routine.buffers[index]
        cuts = address + np.append(np.arange(0, buffer.nbytes, buffer.slot_bytes), buffer.nbytes)
        return _Piece(region, routine.hbm_slot[index], cuts)

    def enter(self, call: Call, routine: Routine) -> Slots:
        """The slots of a call, as earlier calls have left them."""
        slots = Slots(routine.num_slots)
        banks = routine.num_psum
        for mine, shared in zip(_columns(slots), _columns(self._psum)):
            mine[:banks] = shared
        for piece in self._pieces(call, routine):
            r = piece.region
            _gather(piece.first, piece.cuts, r.granule, r.write, r.write_index, slots.write, slots.write_index)
            _gather(
                piece.first, piece.cuts, r.granule, r.read, r.read_index, slots.read[:, DMA], slots.read_index[:, DMA]
            )
        return slots

    def leave(self, call: Call, routine: Routine, slots: Slots) -> None:
        """Remember what a call has done to memory."""
        for mine, shared in zip(_columns(slots), _columns(self._psum)):
            shared[:] = mine[: routine.num_psum]
        readers = slots.read.argmax(axis=1)
        row = np.arange(len(readers))
        read, read_index = slots.read[row, readers], slots.read_index[row, readers]
        for piece in self._pieces(call, routine):
            r = piece.region
            _scatter(piece.first, piece.cuts, r.granule, slots.write, slots.write_index, r.write, r.write_index)
            _scatter(piece.first, piece.cuts, r.granule, read, read_index, r.read, r.read_index)


def _columns(slots: Slots) -> tuple[Ints, ...]:
    return slots.write, slots.writer, slots.write_index, slots.read, slots.read_index


def _inherit(region: Region, old: Region) -> None:
    """Let all of a region wait for all that was done to another that had the same bytes."""
    for times, indices in ((old.write, old.write_index), (old.read, old.read_index)):
        last = int(times.argmax())
        if times[last] > region.write[0]:
            region.write[:], region.write_index[:] = times[last], indices[last]


@njit(cache=True)
def _gather(
    first: int, cuts: Ints, granule: int, shared: Ints, shared_index: Ints, times: Ints, indices: Ints
) -> None:
    """The latest of the granules that each slot touches."""
    for i in range(len(cuts) - 1):
        for g in range(cuts[i] // granule, (cuts[i + 1] - 1) // granule + 1):
            if shared[g] > times[first + i]:
                times[first + i], indices[first + i] = shared[g], shared_index[g]


@njit(cache=True)
def _scatter(
    first: int, cuts: Ints, granule: int, times: Ints, indices: Ints, shared: Ints, shared_index: Ints
) -> None:
    """The latest of the slots that touch each granule."""
    for i in range(len(cuts) - 1):
        for g in range(cuts[i] // granule, (cuts[i + 1] - 1) // granule + 1):
            if times[first + i] > shared[g]:
                shared[g], shared_index[g] = times[first + i], indices[first + i]
