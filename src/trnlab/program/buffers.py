# SPDX-License-Identifier: Apache-2.0
"""The buffers of a routine while it is made: parameters and scratch in HBM, tiles in SBUF and PSUM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod

from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError
from trnlab.isa.base import Memory
from trnlab.numerics.dtypes import DType, dtype
from trnlab.program.access import AP, Buffer, whole
from trnlab.program.pool import TilePool
from trnlab.program.slots import AS_ACCESSED

HBM_ROWS_PER_SLOT = 128
_ALIGN = 64  # bytes; tiles start on multiples
_MOST_HBM = 1 << 48  # bytes; more than any machine has, and sums of it stay within 64 bits


class BufferBuilder:
    """Makes buffers and gives them their places; what is full is refused."""

    def __init__(self, name: str, chip: Chip, sbuf_limit: int | None, banks: int | None) -> None:
        """`sbuf_limit`: bytes per partition that tiles may use; all of the chip's usable SBUF by default. `banks`:
        of PSUM, the first so many; all by default."""
        self.name, self.chip = name, chip
        self.banks = banks or int(chip.psum.num_banks)
        self.sbuf_limit = sbuf_limit or chip.sbuf.usable_bytes_per_partition
        self._buffers: list[Buffer] = []
        self._params: list[int] = []
        self._sbuf_top = self._sbuf_peak = self._resident_top = self._scratch = self._psum_turn = 0

    def param(self, name: str, shape: tuple[int, ...], dt: DType | str, *, slot_rows: int | None = None) -> AP:
        """An HBM tensor passed in by the caller. Dependencies are tracked per `slot_rows` rows of its last two."""
        buffer = self._hbm(name, shape, dtype(dt), "param", slot_rows)
        self._params.append(buffer.id)
        return whole(buffer)

    def scratch(self, name: str, shape: tuple[int, ...], dt: DType | str, *, slot_rows: int | None = None) -> AP:
        """HBM memory of the routine's own; what spills goes here, and its traffic shows. slot_rows: as of `param`."""
        return whole(self._hbm(name, shape, dtype(dt), "scratch", slot_rows))

    def tile(
        self,
        shape: tuple[int, ...],
        dt: DType | str,
        *,
        name: str = "tile",
        memory: Memory = Memory.SBUF,
        slots: int = AS_ACCESSED,
    ) -> AP:
        """A tile [P, F...] that lives until the enclosing `scope` ends. Raises CapacityError when SBUF is full.

        `slots`: equal pieces of the free range that dependencies are tracked on separately; by default those between
        bytes at which accesses begin and end, as far as no access touches many of them.
        """
        return whole(self._on_chip(name, shape, dtype(dt), memory, slots))

    def resident(
        self, shape: tuple[int, ...], dt: DType | str, address: int, *, name: str = "resident", slots: int = 1
    ) -> AP:
        """A tile at an address of its own, which other calls of the program fill or find filled. `tile` must not
        reach it: `sbuf_limit` sees to that."""
        fmt = dtype(dt)
        nbytes = prod(shape[1:]) * fmt.itemsize
        number, slot = len(self._buffers), -(-nbytes // slots)
        lies = 0, shape[0], address, slot  # partitions, bytes
        return self.place(Buffer(number, name, Memory.SBUF, shape, fmt, nbytes, *lies, "resident"))

    def pool(
        self,
        shape: tuple[int, ...],
        dt: DType | str,
        *,
        bufs: int,
        name: str = "pool",
        memory: Memory = Memory.SBUF,
        slots: int = AS_ACCESSED,
    ) -> TilePool:
        """`bufs` tiles used in turn. The others as in `tile`."""
        return TilePool([self.tile(shape, dt, name=f"{name}{i}", memory=memory, slots=slots) for i in range(bufs)])

    def psum(
        self, shape: tuple[int, ...], dt: DType | str = "float32", *, name: str = "acc", bank: int | None = None
    ) -> AP:
        """A PSUM tile at the start of the next bank in turn; the hardware's eight banks are the rotation.

        `bank`: at the start of this bank instead, for kernels that keep some results while others rotate.
        """
        if bank is not None:
            self._psum_turn = bank if bank < self.banks else self.banks + 1
        return whole(self._on_chip(name, shape, dtype(dt), Memory.PSUM, 1))

    @property
    def sbuf_free(self) -> int:
        """Bytes per partition that tiles may still take in this scope."""
        return self.sbuf_limit - self._sbuf_top

    @contextmanager
    def scope(self) -> Iterator[None]:
        """SBUF tiles made inside are released at the end; later tiles that reuse the bytes wait for their readers."""
        top = self._sbuf_top
        try:
            yield
        finally:
            self._sbuf_top = top

    def place(self, buffer: Buffer) -> AP:
        """A buffer with its place already decided, as in the text of a routine; its id must be the next one."""
        if buffer.id != len(self._buffers):
            raise ValueError(f"buffer {buffer.name!r} is number {len(self._buffers)}")
        if buffer.address + buffer.nbytes > self._room(buffer) or buffer.partitions > self.chip.num_partitions:
            raise ValueError(f"buffer {buffer.name!r} is larger than its memory")
        if buffer.kind == "param":
            self._params.append(buffer.id)
        elif buffer.kind == "scratch":
            self._scratch = max(self._scratch, buffer.address + -(-buffer.nbytes // _ALIGN) * _ALIGN)
        elif buffer.kind == "resident":
            self._resident_top = max(self._resident_top, buffer.address + buffer.nbytes)
        elif buffer.memory is Memory.SBUF:
            self._sbuf_peak = max(self._sbuf_peak, buffer.address + buffer.nbytes)
        return whole(self._add(buffer))

    def _room(self, buffer: Buffer) -> int:
        """Bytes of the memory of a buffer, per partition of those on the chip."""
        if buffer.memory is Memory.HBM:
            return _MOST_HBM
        psum = self.chip.psum
        on_chip = psum.num_banks * psum.bank_bytes_per_partition
        return on_chip if buffer.memory is Memory.PSUM else int(self.chip.sbuf.bytes_per_partition.value)

    def unplaced(
        self, shape: tuple[int, ...], dt: DType | str, memory: Memory, *, name: str = "tile", first_partition: int = 0
    ) -> AP:
        """A tile whose address in its partitions is decided with `settle`, once all of its uses are recorded.

        Dependencies are tracked between the bytes at which its accesses begin and end.
        """
        return whole(self.unplaced_buffer(shape, dtype(dt), memory, name, first_partition))

    def unplaced_buffer(
        self, shape: tuple[int, ...], fmt: DType, memory: Memory, name: str, first_partition: int
    ) -> Buffer:
        """The memory of an `unplaced` tile, for callers that make their own views of it."""
        nbytes = max(prod(shape[1:]), 1) * fmt.itemsize
        made = Buffer(len(self._buffers), name, memory, shape, fmt, nbytes, first_partition, shape[0], 0, AS_ACCESSED)
        return self._add(made)

    def settle(self, addresses: Mapping[int, int]) -> None:
        """Give unplaced tiles (by buffer id) their byte address within a partition, before `build`."""
        for number, address in addresses.items():
            buffer = self._buffers[number] = self._buffers[number].at(address)
            if buffer.memory is Memory.SBUF:
                self._sbuf_peak = max(self._sbuf_peak, address + buffer.nbytes)

    def _hbm(self, name: str, shape: tuple[int, ...], dt: DType, kind: str, slot_rows: int | None) -> Buffer:
        nbytes = max(prod(shape), 1) * dt.itemsize
        row = (shape[-1] if shape else 1) * dt.itemsize
        slot = max((slot_rows or HBM_ROWS_PER_SLOT) * row, 1)
        address = self._scratch if kind == "scratch" else 0
        buffer = Buffer(
            len(self._buffers),
            name,
            Memory.HBM,
            shape or (1,),
            dt,
            nbytes,
            address=address,
            slot_bytes=slot,
            kind=kind,
        )
        if kind == "scratch":
            self._scratch += -(-nbytes // _ALIGN) * _ALIGN
        return self._add(buffer)

    def _on_chip(self, name: str, shape: tuple[int, ...], dt: DType, memory: Memory, slots: int) -> Buffer:
        nbytes = prod(shape[1:]) * dt.itemsize
        if memory is Memory.PSUM:
            address = self._psum_address(nbytes)
        else:
            address = self._sbuf_address(name, nbytes)
        buffer = Buffer(
            len(self._buffers),
            name,
            memory,
            shape,
            dt,
            nbytes,
            partitions=shape[0],
            address=address,
            slot_bytes=-(-nbytes // slots) if slots else AS_ACCESSED,
        )
        return self._add(buffer)

    def _add(self, buffer: Buffer) -> Buffer:
        self._buffers.append(buffer)
        return buffer

    def _sbuf_address(self, name: str, nbytes: int) -> int:
        address, size = self._sbuf_top, -(-nbytes // _ALIGN) * _ALIGN
        if address + size > self.sbuf_limit:
            largest = sorted((b for b in self._buffers if b.memory is Memory.SBUF), key=lambda b: -b.nbytes)[:5]
            raise CapacityError(
                f"tile {name!r} of routine {self.name!r} does not fit in SBUF",
                code="TRN501",
                limit=f"{self.sbuf_limit} bytes per partition",
                got=f"{address} in use + {nbytes}; largest: "
                + ", ".join(f"{b.name} {list(b.shape)} {b.nbytes} B" for b in largest),
                chip=self.chip.name,
                remedy="use smaller tiles, fewer buffers in a pool, or a scope that ends earlier",
            )
        self._sbuf_top += size
        self._sbuf_peak = max(self._sbuf_peak, self._sbuf_top)
        return address

    def _psum_address(self, nbytes: int) -> int:
        psum = self.chip.psum
        banks = -(-nbytes // psum.bank_bytes_per_partition)
        if banks > self.banks or self._psum_turn > self.banks:
            raise CapacityError(
                f"a PSUM tile of routine {self.name!r} is larger than PSUM",
                code="TRN502",
                limit=f"{self.banks} banks of {psum.bank_bytes_per_partition} bytes",
                got=f"{nbytes} bytes per partition",
                chip=self.chip.name,
                remedy="split the free dimension",
            )
        turn = self._psum_turn % self.banks
        if turn + banks > self.banks:
            turn = 0
        self._psum_turn = turn + banks
        return turn * psum.bank_bytes_per_partition
