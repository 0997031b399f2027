# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki.compiler: allocators, and switches of the vendor's compiler.

An allocator goes where `buffer=` takes a region. `alloc` and `mod_alloc` say where every tile lies: a function of the
tile's index gives (partition, byte) in SBUF and (bank, partition, byte) in PSUM. `auto_alloc` leaves it open. Made
in the body of a loop, an allocator is that of the first iteration, see `loops`.

Source: nki.compiler.{sbuf,psum}.{alloc,mod_alloc,auto_alloc} of the 2.2x documentation of aws-neuron-sdk.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from math import prod
from typing import Any

from trnlab.lang.recorder import current
from trnlab.lang.storage import MemorySpace, refuse
from trnlab.nki.language import no_reorder
from trnlab.nki.neuronxcc.loops import once_per_body

__all__ = ["no_reorder"]

Index = tuple[int, ...]
Place = Callable[[Index, int, int], tuple[int, ...]]


@dataclass(frozen=True)
class Allocation:
    """What `buffer=` takes in the place of a region. place: None leaves the addresses open."""

    region: MemorySpace
    place: Place | None = None

    def address(self, index: Index, partitions: int, nbytes: int) -> tuple[int, int] | None:
        """(partition, byte within it) of the tile with this index, or None.

        partitions, nbytes: what the tile takes. Raises ConstraintError for an answer that is no such place.
        """
        if self.place is None:
            return None
        answer = tuple(int(n) for n in self.place(index, partitions, nbytes))
        wanted = ("bank", "partition", "byte") if self.region is MemorySpace.psum else ("partition", "byte")
        if len(answer) != len(wanted) or min(answer) < 0:
            refuse(
                "an allocator's function gives the place of a tile",
                limit=f"({', '.join(wanted)}), from 0 on",
                got=answer,
                remedy=f"return {len(wanted)} integers for tile {index}",
                code="TRN411",
            )
        if self.region is not MemorySpace.psum:
            return answer[0], answer[1]
        return self._in_psum(answer[0], answer[1], answer[2], nbytes)

    def _in_psum(self, bank: int, partition: int, byte: int, nbytes: int) -> tuple[int, int]:
        psum = current().chip.psum
        size = psum.bank_bytes_per_partition
        if bank >= psum.num_banks or byte + nbytes > size:
            refuse(
                "a tile in PSUM lies within one bank",
                limit=f"{psum.num_banks} banks of {size} bytes",
                got=f"bank {bank}, bytes {byte}..{byte + nbytes}",
                remedy="make the tile at most one bank, and take bank numbers modulo the banks there are",
                code="TRN411",
            )
        return partition, bank * size + byte


def _modulo(base: int, tiles: Index, index: Index, scale: int) -> int:
    """Where tile `index` goes when `tiles` of them exist side by side and are taken in turns."""
    tiles = tuple(tiles) or (1,) * len(index)
    if index and len(tiles) != len(index):
        refuse(
            "a number of tiles for each dimension that numbers tiles",
            limit=f"{len(index)} numbers",
            got=tiles,
            remedy="give one per block dimension, or none",
            code="TRN411",
        )
    turn = (i % n for i, n in zip(index, tiles))
    return base + scale * sum(i * prod(tiles[at + 1 :]) for at, i in enumerate(turn))


class _Allocator:
    """The ways to allocate in one memory."""

    def __init__(self, region: MemorySpace) -> None:
        self.region = region

    def alloc(self, func: Callable[..., tuple[int, ...]]) -> Allocation:
        """By a function func(idx, pdim_size, fdim_size): index of the tile, partitions, bytes per partition."""

        def place(index: Index, partitions: int, nbytes: int) -> tuple[int, ...]:
            return tuple(func(idx=index, pdim_size=partitions, fdim_size=nbytes))

        return once_per_body(lambda: Allocation(self.region, place if "idx" in signature(func).parameters else func))

    def auto_alloc(self) -> Allocation:
        """Wherever there is room."""
        return Allocation(self.region)


class _Sbuf(_Allocator):
    def mod_alloc(
        self, *, base_addr: int, base_partition: int = 0, num_par_tiles: Index = (), num_free_tiles: Index = ()
    ) -> Allocation:
        """From byte `base_addr` on, `num_free_tiles` places side by side that tiles take in turns."""

        def place(index: Index, partitions: int, nbytes: int) -> tuple[int, int]:
            return (
                _modulo(base_partition, num_par_tiles, index, partitions),
                _modulo(base_addr, num_free_tiles, index, nbytes),
            )

        return once_per_body(lambda: Allocation(self.region, place))


class _Psum(_Allocator):
    def mod_alloc(
        self,
        *,
        base_bank: int,
        base_addr: int = 0,
        base_partition: int = 0,
        num_bank_tiles: Index = (),
        num_par_tiles: Index = (),
        num_free_tiles: Index = (),
    ) -> Allocation:
        """From bank `base_bank` on, `num_bank_tiles` banks that tiles take in turns."""

        def place(index: Index, partitions: int, nbytes: int) -> tuple[int, int, int]:
            return (
                _modulo(base_bank, num_bank_tiles, index, 1),
                _modulo(base_partition, num_par_tiles, index, partitions),
                _modulo(base_addr, num_free_tiles, index, nbytes),
            )

        return once_per_body(lambda: Allocation(self.region, place))


sbuf, psum = _Sbuf(MemorySpace.sbuf), _Psum(MemorySpace.psum)


def region_of(buffer: Any) -> MemorySpace:
    """The region of a `buffer=`, SBUF where it is None."""
    if buffer is None:
        return MemorySpace.sbuf
    region = buffer.region if isinstance(buffer, Allocation) else buffer
    if not isinstance(region, MemorySpace):
        refuse(
            "not a memory region",
            limit="nl.sbuf, nl.psum, nl.private_hbm, nl.shared_hbm, an allocator of ncc",
            got=buffer,
            remedy="pass the object, not its name",
            code="TRN411",
        )
    return region


# -- switches ----------------------------------------------------------------------------------------------------
def _switch(name: str, what: str) -> Any:
    def switch(func: Any = None, **options: Any) -> Any:
        return func if callable(func) else lambda f: f

    switch.__name__, switch.__doc__ = name, f"{what} Steers the vendor's compiler only; nothing changes here."
    return switch


def skip_middle_end_transformations(func: Any = None) -> Any:
    """A decorator: the compiler does less with the kernel, see `MIDDLE_END` of `program.passes`."""
    if func is None:
        return skip_middle_end_transformations
    getattr(func, "function", func).__dict__["skip_middle_end"] = True
    return func


def skips_middle_end(function: Any) -> bool:
    """Whether a function was decorated with `skip_middle_end_transformations`."""
    return bool(getattr(function, "skip_middle_end", False))


multi_buffer = _switch("multi_buffer", "More than one buffer per tile.")


def enable_stack_allocator(func: Any = None, log_level: int = 50) -> Any:
    """A decorator: tiles are placed like a stack. Steers the vendor's compiler only; nothing changes here."""
    return func if callable(func) else lambda f: f


def force_auto_alloc(func: Any = None) -> Any:
    """A decorator: the addresses that the kernel asks for are ignored."""
    if func is None:
        return force_auto_alloc
    function = getattr(func, "function", func)
    function.__dict__["force_auto_alloc"] = True
    return func


@contextmanager
def scope(*_: Any, **__: Any) -> Any:
    """A region of the kernel; nothing changes."""
    yield
