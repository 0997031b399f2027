# SPDX-License-Identifier: Apache-2.0
"""Dependencies that outlive a call: HBM tensors, the bytes of SBUF, and PSUM banks.

Inside a call, slots are the routine's own. Between calls the state lives in "regions", runs of bytes cut into
granules: one per HBM tensor (as fine as the finest routine that uses it), one for the scratch memory, one for SBUF.
Entering a call gathers the granules into the routine's slots, leaving it scatters them back; where the two are cut
differently, a slot waits for every granule it touches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import Memory
from trnlab.loops import compiled
from trnlab.program.routine import Call, Program, Routine
from trnlab.sim.timing.layout import DMA, NEVER, READ_AT, READER, WRITER, WROTE, Ints
from trnlab.sim.timing.order import slots as new_slots
from trnlab.sim.timing.plan import TimingPlan

_SBUF_GRANULE = 64  # bytes per partition; tiles start on multiples of it
_WRITE, _READ = 0, 2  # of `_History.last`, each before who did it
_MOST_GRANULES = 1 << 16  # of the scratch memory


class SharedBytes(NamedTuple):
    """Bytes shared by calls: granules of so many bytes, so many of them from `first` on in a `_History`."""

    granule: int
    first: int
    granules: int


class _History:
    """What was done to all granules. last: of each the last write, who wrote, the last read, and who read."""

    def __init__(self) -> None:
        self.last = np.empty((0, 4), np.int64)
        self.size = 0

    def region(self, nbytes: int, granule: int) -> SharedBytes:
        """Bytes that nobody has used."""
        found = SharedBytes(granule, self.size, max(-(-nbytes // granule), 1))
        self.size += found.granules
        if self.size > len(self.last):
            more = np.full((self.size, 4), NEVER, np.int64)
            more[:, _WRITE + 1] = more[:, _READ + 1] = -1
            self.last = np.concatenate([self.last, more])
        return found

    def of(self, region: SharedBytes) -> Ints:
        """The rows of a region."""
        return self.last[region.first : region.first + region.granules]


class _Places(NamedTuple):
    """Slots of a routine, each perhaps several times, with the first and the last of the granules that it touches."""

    slot: Ints
    first: Ints
    last: Ints


class Memories:
    """The regions of a program."""

    def __init__(self, program: Program, plans: Sequence[TimingPlan], chip: Chip) -> None:
        self.program, self.plans = program, plans
        self._row = {t.id: i for i, t in enumerate(program.tensors)}
        self._extent = np.array([(t.address, t.address + t.nbytes) for t in program.tensors], np.int64).reshape(-1, 2)
        self._extent[self._extent[:, 0] < 0] = -1  # bound elsewhere: it shares no bytes with the arena
        self._touched = np.zeros(len(program.tensors), np.bool_)  # used so far, and placed in the arena
        # of each tensor the latest of all its granules, as a row of `_History.last`, and where that is up to date
        self._latest = np.full((len(program.tensors), 4), NEVER, np.int64)
        self._is_known = np.zeros(len(program.tensors), np.bool_)
        self._granules = self._finest()
        self._regions: dict[int, SharedBytes] = {}
        self._history, self._known = _History(), dict[tuple[Any, ...], _Places]()
        self._times = Counter(map(_asked, program.calls))
        finest = [r.buffers[i].slot_bytes for r, p in zip(program.routines, plans) for i in p.scratch]
        top = program.scratch_bytes
        self._sizes = [
            (int(chip.sbuf.bytes_per_partition.value), _SBUF_GRANULE),
            (top, max(min(finest, default=1), -(-top // _MOST_GRANULES))),
        ]
        self._sbuf, self._scratch = (self._history.region(*size) for size in self._sizes)
        self._psum = new_slots(chip.psum.num_banks)

    @classmethod
    def of_cores(cls, program: Program, plans: Sequence[TimingPlan], chip: Chip, cores: int) -> list[Memories]:
        """The regions as each of several cores has them: tensors in HBM are shared, all else is a core's own."""
        found = [cls(program, plans, chip) for _ in range(cores)]
        for memory in found[1:]:
            memory._regions, memory._touched = found[0]._regions, found[0]._touched
            memory._latest, memory._is_known = found[0]._latest, found[0]._is_known
            memory._history = found[0]._history
            memory._sbuf, memory._scratch = (memory._history.region(*size) for size in memory._sizes)
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
            region = self._regions[tensor] = self._history.region(me.nbytes, self._granules[tensor])
            overlap = self._touched & (self._extent[:, 0] < high) & (low < self._extent[:, 1])
            for other in np.flatnonzero(overlap & ~self._is_known):
                old = self._regions[self.program.tensors[other].id]
                _find_latest(self._history.of(old), self._latest[other])
                self._is_known[other] = True
            _inherit(self._history.of(region), self._latest, np.flatnonzero(overlap))
            self._touched[row] = me.address >= 0
        return region

    def _places(self, call: Call, routine: Routine) -> _Places:
        """Where the slots of a call are; of calls that come again, kept."""
        key = _asked(call)
        found = self._known.get(key)
        if found is None:
            tensors = [self._tensor(tensor) for tensor in call.args]
            scratch = [self._scratch] * len(self.plans[call.routine].scratch)
            regions = [*tensors, *scratch, self._sbuf]
            within, counts = self._within(call, routine, tuple(region.granule for region in regions))
            base = np.repeat([region.first for region in regions], counts)
            found = _Places(within.slot, within.first + base, within.last + base)
            if self._times[key] > 1:
                self._known[key] = found
        return found

    def _within(self, call: Call, routine: Routine, granules: tuple[int, ...]) -> tuple[_Places, list[int]]:
        """The places of a call from the first granule of each region on, and how many are in each; kept with the
        routine."""
        known: dict[Any, tuple[_Places, list[int]]] = routine._memo.setdefault("places", {})
        key = granules, call.offsets, call.sbuf_base
        if key not in known:
            p, offsets = self.plans[call.routine], call.offsets or (0,) * len(call.args)
            buffers = [*zip(routine.params, offsets, strict=True)]
            buffers += [(index, routine.buffers[index].address) for index in p.scratch]
            parts = [_of_buffer(routine, *buffer, granule) for buffer, granule in zip(buffers, granules)]
            low, high = _tiles_of(routine, p)
            parts.append(_touched(routine.num_psum, low + call.sbuf_base, high + call.sbuf_base, granules[-1]))
            whole = _Places(*(np.concatenate(column) for column in zip(*parts)))
            known[key] = whole, [len(part.slot) for part in parts]
        return known[key]

    def enter(self, call: Call, routine: Routine) -> Ints:
        """The slots of a call, as earlier calls have left them. What they did counts as done by DMA, for which
        everybody waits.
        """
        slots = new_slots(routine.num_slots)
        slots[: routine.num_psum] = self._psum
        _gather(*self._places(call, routine), self._history.last, slots)
        return slots

    def leave(self, call: Call, routine: Routine, slots: Ints) -> None:
        """Remember what a call has done to memory."""
        self._psum[:] = slots[: routine.num_psum]
        self._is_known[[self._row[tensor] for tensor in call.args]] = False
        _scatter(*self._places(call, routine), slots, self._history.last)


def _asked(call: Call) -> tuple[Any, ...]:
    """What decides where the slots of a call are."""
    return call.routine, call.args, call.offsets, call.sbuf_base


def _of_buffer(routine: Routine, index: int, address: int, granule: int) -> _Places:
    """The places of a buffer that begins so many bytes behind the first of its region."""
    buffer = routine.buffers[index]
    if buffer.grid is not None:
        low, high = buffer.grid.extents()
        high = np.minimum(high, buffer.nbytes)
    else:
        cuts = np.append(np.arange(0, buffer.nbytes, buffer.slot_bytes), buffer.nbytes)
        low, high = cuts[:-1], cuts[1:]
    return _touched(routine.hbm_slot[index], address + low, address + high, granule)


def _touched(first: int, low: Ints, high: Ints, granule: int) -> _Places:
    """What is known of slots from `first` on, whose bytes are [low[i], high[i])."""
    slot = first + np.arange(len(low), dtype=np.int64)
    return _Places(slot, low // granule, (high - 1) // granule)


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


@compiled
def _find_latest(granules: Ints, found: Ints) -> None:
    """The last write and the last read of a region, the first of equal ones, each with who did it."""
    for time in (_WRITE, _READ):
        latest = 0
        for g in range(len(granules)):
            if granules[g, time] > granules[latest, time]:
                latest = g
        found[time], found[time + 1] = granules[latest, time], granules[latest, time + 1]


@compiled
def _inherit(mine: Ints, latest: Ints, others: Ints) -> None:
    """Let all of a region, which nobody has used, wait for all that was done to others that had the same bytes, as
    if all of it were writes. latest: of all tensors, see `_find_latest`; others: the numbers of these."""
    wrote, who = mine[0, _WRITE], mine[0, _WRITE + 1]
    for n in range(len(others)):
        for time in (_WRITE, _READ):
            if latest[others[n], time] > wrote:
                wrote, who = latest[others[n], time], latest[others[n], time + 1]
    for g in range(len(mine)):
        mine[g, _WRITE], mine[g, _WRITE + 1] = wrote, who


@compiled
def _gather(slot: Ints, first: Ints, final: Ints, last: Ints, slots: Ints) -> None:
    """The latest of the granules that each slot touches."""
    for i in range(len(slot)):
        s = slot[i]
        for g in range(first[i], final[i] + 1):
            if last[g, _WRITE] > slots[s, WROTE]:
                slots[s, WROTE], slots[s, WRITER] = last[g, _WRITE], last[g, _WRITE + 1] * 8 + DMA
            if last[g, _READ] > slots[s, READ_AT]:
                slots[s, READ_AT], slots[s, READER] = last[g, _READ], last[g, _READ + 1] * 8 + DMA


@compiled
def _scatter(slot: Ints, first: Ints, final: Ints, slots: Ints, last: Ints) -> None:
    """The latest of the slots that touch each granule."""
    for i in range(len(slot)):
        s = slot[i]
        for g in range(first[i], final[i] + 1):
            if slots[s, WROTE] > last[g, _WRITE]:
                last[g, _WRITE], last[g, _WRITE + 1] = slots[s, WROTE], slots[s, WRITER] >> 3
            if slots[s, READ_AT] > last[g, _READ]:
                last[g, _READ], last[g, _READ + 1] = slots[s, READ_AT], slots[s, READER] >> 3
