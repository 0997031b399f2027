# SPDX-License-Identifier: Apache-2.0
"""Tensors whose leading dimensions number tiles: nl.ndarray((4, 8, nl.par_dim(128), 512)).

The dimensions before the partition count tiles, each with a place of its own; an allocator of nki.compiler may lay
several of them over one another, which is how kernels take turns on buffers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod
from sys import getrefcount
from typing import Any

from trnlab.isa.base import Memory
from trnlab.lang.assignment import alone_in_setting
from trnlab.lang.formats import format_of
from trnlab.lang.recorder import current
from trnlab.lang.storage import MemorySpace, refuse
from trnlab.lang.tensor import Tensor
from trnlab.nki.neuronxcc import assignment
from trnlab.nki.neuronxcc.compiler import Allocation, region_of
from trnlab.nki.neuronxcc.defined import fresh

Index = tuple[int, ...]


class ParDim(int):
    """A size that is the partition dimension."""


class BlockedTensor:
    """Tiles by index: (blocks..., par_dim(P), F...)."""

    def __init__(self, shape: Index, blocks: int, make: Callable[[Index], Tensor], index: Index = ()) -> None:
        self.shape, self._blocks, self._make, self._index = shape, blocks, make, index

    @property
    def dtype(self) -> Any:
        """Its number format."""
        return self._tile((0,) * self._blocks).dtype

    format = dtype

    @property
    def buffer(self) -> MemorySpace:
        """Where its tiles lie."""
        return self._tile((0,) * self._blocks).buffer

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def view(self, dtype: Any) -> BlockedTensor:
        """The same bytes read as another format; the last dimension grows or shrinks with the element size."""
        fmt = format_of(dtype)
        last = self.shape[-1] * self.format.itemsize // fmt.itemsize
        return BlockedTensor(
            (*self.shape[:-1], last), self._blocks, lambda index: self._make(index).view(fmt), self._index
        )

    @property
    def indices(self) -> list[Index]:
        """Indices of its tiles, in order."""
        return list(itertools.product(*(range(n) for n in self.shape[: self._blocks])))

    def _tile(self, index: Index) -> Tensor:
        return self._make((*self._index, *index))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        keys = key if key.__class__ is tuple else (key,)
        first = keys[: self._blocks]
        if len(first) == self._blocks and self._inside(first):  # as most kernels index
            tile, rest = self._make((*self._index, *first)), keys[self._blocks :]
            return tile[rest] if rest else tile
        keys = self._expand(keys)
        chosen: list[int] = []
        for dim, k in enumerate(keys[: self._blocks]):
            if all(isinstance(other, slice) and other == slice(None) for other in keys[dim:]):
                break
            chosen.append(self._number(dim, k))
        if len(chosen) < self._blocks:
            left = self._blocks - len(chosen)
            return BlockedTensor(self.shape[len(chosen) :], left, self._make, (*self._index, *chosen))
        tile, rest = self._tile(tuple(chosen)), keys[self._blocks :]
        return tile[rest] if rest else tile

    def _inside(self, keys: tuple[Any, ...]) -> bool:
        """Whether these are numbers of tiles, counted from the first."""
        for k, size in zip(keys, self.shape):  # noqa: SIM110 -- `all` of a generator takes twice as long
            if k.__class__ is not int or not 0 <= k < size:
                return False
        return True

    def _expand(self, keys: tuple[Any, ...]) -> tuple[Any, ...]:
        at = next((i for i, k in enumerate(keys) if k is Ellipsis), None)
        if at is None:
            return keys
        return (*keys[:at], *(slice(None),) * (self.ndim - len(keys) + 1), *keys[at + 1 :])

    def _number(self, dim: int, key: Any) -> int:
        size = self.shape[dim]
        if not hasattr(key, "__index__"):
            refuse(
                "a dimension that numbers tiles takes one index at a time",
                limit="an integer",
                got=key,
                remedy="loop over it, or make the partition the first dimension",
                code="TRN410",
            )
        index = int(key) + size * (int(key) < 0)
        if not 0 <= index < size:
            refuse(
                "no such tile",
                limit=f"0..{size - 1} in dimension {dim}",
                got=int(key),
                remedy="index within the shape",
                code="TRN410",
            )
        return index

    def __setitem__(self, key: Any, value: Any) -> None:
        alone = alone_in_setting(getrefcount(value), value)
        target = self[key]
        if isinstance(target, BlockedTensor):
            for index in target.indices:
                assignment.assign(target[index], value[index] if isinstance(value, BlockedTensor) else value)
        else:
            assignment.assign(target, value, alone)


def make(shape: Any, dtype: Any, buffer: Any, name: str = "", fill: Callable[[Tensor], None] | None = None) -> Any:
    """Memory: a tile, or blocks of them when the partition is not the first dimension.

    fill: what each tile gets first, when it is first named, for a kernel may declare more tiles than fit at once.
    """
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    at = next((i for i, s in enumerate(sizes) if isinstance(s, ParDim)), 0)
    plain = tuple(int(s) for s in sizes)
    region = region_of(buffer)
    if region.memory is Memory.HBM:
        return current().tensor(plain, format_of(dtype), region, name=name)
    plain = (*plain, 1) if len(plain) == 1 else plain
    first = fill or (lambda tile: None)
    if at == 0:
        whole = _tile(plain, dtype, buffer, (), name)
        first(whole)
        return whole
    tiles: dict[Index, Tensor] = {}
    outside = not current().spans.inside

    def tile(index: Index) -> Tensor:
        known = tiles.get(index)
        if known is None:
            known = tiles[index] = _tile(plain[at:], dtype, buffer, index, name and f"{name}{list(index)}")
            if outside:
                current().builder.arrays.add(known.storage.buffer.id)
            first(known)
        return known

    return BlockedTensor(plain, at, tile)


def _tile(shape: Index, dtype: Any, buffer: Any, index: Index, name: str) -> Tensor:
    address = None
    if isinstance(buffer, Allocation) and not current().once("automatic", bool):
        address = buffer.address(index, shape[0], prod(shape[1:]) * format_of(dtype).itemsize)
    return fresh(current().tensor(shape, format_of(dtype), region_of(buffer), name=name, address=address))
