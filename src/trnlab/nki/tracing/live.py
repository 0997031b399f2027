# SPDX-License-Identifier: Apache-2.0
"""Values while a kernel is recorded: what it has recorded so far is executed on the side.

A loop with a condition, a bound from a register and an address chosen at run time need a number before the next
instruction is known. `Shadow` executes, each time it is asked, only the instructions that are new. It works on copies
of the caller's arrays, and every tile has memory of its own (those with an address that the kernel chose lie there):
where tiles finally lie, and whether they fit, is decided when the recording ends; the routine then runs as a whole.

Cores that meet have a shadow each, see `trnlab.nki.tracing.interleave`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import Memory
from trnlab.lang.formats import Format
from trnlab.lang.recorder import Recorder, TileRecord
from trnlab.lang.tensor import Tensor
from trnlab.nki.tracing.arrays import HostArray
from trnlab.program.routine import Routine
from trnlab.sim.functional import Machine, RunOptions
from trnlab.sim.functional.machine import POISON, RoutineFrame, address_of, poisoned
from trnlab.sim.functional.meaning import array_at

Array = np.ndarray[Any, Any]
_LINE = 64


class Shadow:
    """Executes what a recorder has recorded. hbm: contents by number of `Recorder.memory`; it grows by what is made.

    Cores that share HBM have one `hbm`.
    """

    def __init__(
        self, recorder: Recorder, hbm: MutableMapping[int, Array], options: RunOptions | None = None
    ) -> None:
        self.recorder, self.hbm, self.options = recorder, hbm, options
        self.known = self.done = 0  # instructions taken over from the recorder, and those executed
        self._frames: deque[tuple[int, RoutineFrame]] = deque()  # what is not executed, with the number of its first
        self._machine: _Machine | None = None

    def take(self) -> Routine | None:
        """Take over what has been recorded since the last time."""
        builder = self.recorder.builder
        if self.known == len(builder):
            return None
        part = builder.part(self.known)
        self._running().bind(self.recorder, self.hbm)
        self._frames.append((self.known, self._running().begin(part, [])))
        self.known = len(builder)
        return part

    def run(self, stop: int) -> None:
        """Execute up to instruction `stop`, which is not executed."""
        while self.done < stop:
            first, frame = self._frames[0]
            last = min(stop - first, len(frame.routine))
            self._running().advance(frame, self.done - first, last)
            self.skip(first + last - self.done)

    def skip(self, count: int = 1) -> None:
        """Instructions that somebody else has executed."""
        self.done += count
        while self._frames and self._frames[0][0] + len(self._frames[0][1].routine) <= self.done:
            self._frames.popleft()

    @property
    def next(self) -> tuple[RoutineFrame, int]:
        """The next instruction: its frame, and its number there."""
        first, frame = self._frames[0]
        return frame, self.done - first

    def read(self, tensor: Tensor) -> Array:
        """What a tensor holds after all that has been executed, as an array of its shape."""
        place = tensor.storage.buffer
        machine = self._running()
        if self.done == len(self.recorder.builder):
            machine.forget()
        machine.bind(self.recorder, self.hbm)
        address, pitch = machine.where[place.id]
        fmt = Format(tensor.format)
        size, row = fmt.itemsize, place.nbytes // fmt.itemsize
        partition, start = (0, tensor.offset) if place.memory is Memory.HBM else divmod(tensor.offset, row)
        strides = tuple(s * size for s in tensor.strides)
        if place.memory is not Memory.HBM:
            strides = (pitch, *strides[1:])
        return array_at(address + partition * pitch + start * size, tensor.shape, strides, fmt.dtype).copy()

    def _running(self) -> _Machine:
        if self._machine is None:
            self._machine = _Machine(self.recorder.chip, replace(self.options or RunOptions(), threads=1))
        return self._machine


class _Machine(Machine):
    """A machine whose tiles lie where there is room. where: address and bytes between partitions, per buffer."""

    def __init__(self, chip: Chip, options: RunOptions) -> None:
        super().__init__(chip, options, sbuf_bytes=0)  # all of it comes with the first tile that has an address there
        self.where: dict[int, tuple[int, int]] = {}
        self._rooms: dict[int, Array] = {}
        self._unused: deque[int] = deque()  # tiles that no tensor uses any more
        self._tiles = self._params = 0
        self._base, self._pitch = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def bind(self, recorder: Recorder, hbm: MutableMapping[int, Array]) -> None:
        """Give memory to what the recorder has made since the last time."""
        for position in range(self._params, len(recorder.hbm)):
            array = _contents(recorder, position, hbm)
            self._at(recorder.hbm[position].storage.buffer.id, address_of(array), 0)
        self._params = len(recorder.hbm)
        for made in recorder.tiles[self._tiles :]:
            if made.address is None:
                self._own(made)
            else:
                memory = self._whole_sbuf() if made.buffer.memory is Memory.SBUF else self.psum
                start = address_of(memory) + made.buffer.first_partition * memory.strides[0] + made.address
                self._at(made.buffer.id, start, memory.strides[0])
        self._tiles = len(recorder.tiles)

    def forget(self) -> None:
        """Give back the memory of tiles that no tensor uses any more, once all that named them has been executed."""
        while self._unused:
            del self._rooms[self._unused.popleft()]

    def _whole_sbuf(self) -> Array:
        if not self.sbuf.shape[1]:
            self.sbuf = poisoned(self.chip.num_partitions, int(self.chip.sbuf.bytes_per_partition.value))
        return self.sbuf

    def _own(self, made: TileRecord) -> None:
        number, storage = made.buffer.id, made.storage()
        pitch = -(-made.buffer.nbytes // _LINE) * _LINE + _LINE
        room = self._rooms[number] = np.full(made.buffer.partitions * pitch + 2 * _LINE, POISON, np.uint8)
        self._at(number, -(-address_of(room) // _LINE) * _LINE, pitch)
        if storage is None:
            self._unused.append(number)
        else:
            weakref.finalize(storage, self._unused.append, number).atexit = False

    def _at(self, number: int, address: int, pitch: int) -> None:
        self.where[number] = (address, pitch)
        if number >= len(self._base):
            more = max(number + 1, 2 * len(self._base))
            self._base, self._pitch = (np.resize(a, more) for a in (self._base, self._pitch))
        self._base[number], self._pitch[number] = address, pitch

    def _check(self, routine: Routine, args: Any, sbuf_base: int) -> None:
        """Nothing to check: tensors are those of the recorder, and tiles have room."""

    def _bind(self, *_: Any) -> tuple[Array, Array]:
        return self._base, self._pitch


def _contents(recorder: Recorder, position: int, hbm: MutableMapping[int, Array]) -> Array:
    """The memory of an HBM tensor: known, a constant of the kernel, or poison."""
    number = recorder.numbers[position]
    if number not in hbm:
        known = recorder.arrays.get(position)
        nbytes = recorder.hbm[position].storage.buffer.nbytes
        hbm[number] = np.full(nbytes, POISON, np.uint8) if known is None else known.copy()
    return hbm[number]


class Copies(MutableMapping[int, Array]):
    """Contents by number that may be written: copies of the caller's arrays, made when somebody looks."""

    def __init__(self, arrays: Mapping[int, HostArray]) -> None:
        self._arrays, self._known = dict(arrays), dict[int, Array]()

    def __getitem__(self, number: int) -> Array:
        if number not in self._known:
            self._known[number] = np.array(self._arrays[number].data, copy=True, order="C")
        return self._known[number]

    def __setitem__(self, number: int, array: Array) -> None:
        self._known[number] = array

    def __delitem__(self, number: int) -> None:
        del self._known[number]

    def __iter__(self) -> Any:
        return iter(self._arrays.keys() | self._known.keys())

    def __len__(self) -> int:
        return len(self._arrays.keys() | self._known.keys())

    def __contains__(self, number: object) -> bool:
        return number in self._arrays or number in self._known
