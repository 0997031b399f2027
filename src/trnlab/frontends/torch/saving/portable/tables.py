# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint has, whatever its format: tensors as slices that are read when they are wanted, and plain values.

Nothing here holds a model: one chunk of a file, as it was written, is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trnlab.errors import RunError
from trnlab.storage.layouts import Slice, covering, within


@dataclass(frozen=True)
class Chunk:
    """A slice of a tensor as it lies in a file. load: reads it."""

    slice: Slice
    load: Callable[[], Tensor]


@dataclass
class TensorEntry:
    """A tensor: its format, the shape of the whole, and where its slices are. path: its name, part by part."""

    path: tuple[Any, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


class CheckpointTable:
    """The tensors and values of a checkpoint by name. same: other names of tensors, such as tied weights."""

    def __init__(self) -> None:
        self.entries: dict[str, TensorEntry] = {}
        self.values: dict[str, tuple[tuple[Any, ...], Any]] = {}
        self.same: dict[str, str] = {}
        self._latest: tuple[Chunk, Tensor] | None = None

    def read(self, name: str, wanted: Slice | None = None) -> Tensor:
        """A slice of a tensor, or all of it. Raises RunError (TRN543) where the checkpoint has it not whole."""
        entry = self.entry(name)
        wanted = wanted or ((0,) * len(entry.shape), entry.shape)
        parts = list(covering(wanted, [chunk.slice for chunk in entry.chunks]))
        if not parts and torch.Size(wanted[1]).numel():
            raise RunError(
                f"the checkpoint has not all of {name}",
                code="TRN543",
                got=f"{len(entry.chunks)} slices of it",
                limit=f"{list(wanted[1])} from {list(wanted[0])}",
                remedy="see `trnlab checkpoint verify`",
            )
        found = torch.empty(wanted[1], dtype=entry.dtype)
        for i, part in parts:
            chunk = entry.chunks[i]
            found[within(part, wanted)] = self._loaded(name, chunk, entry)[within(part, chunk.slice)]
        return found

    def entry(self, name: str) -> TensorEntry:
        """A tensor, by any of its names. Raises RunError (TRN543) for none."""
        known = self.entries.get(self.same.get(name, name))
        if known is None:
            raise RunError(
                f"the checkpoint has no tensor {name}",
                code="TRN543",
                got=f"{len(self.entries)} others",
                remedy="see what it has: trnlab checkpoint show",
            )
        return known

    def add(self, name: str, path: tuple[Any, ...], dtype: torch.dtype, shape: tuple[int, ...], chunk: Chunk) -> None:
        """Another slice of a tensor. Raises RunError (TRN543) where it is not like those before."""
        entry = self.entries.setdefault(name, TensorEntry(path, dtype, shape))
        if (entry.dtype, entry.shape) != (dtype, shape):
            raise RunError(
                f"slices of {name} are not of one tensor",
                code="TRN543",
                limit=f"{entry.dtype}{list(entry.shape)}",
                got=f"{dtype}{list(shape)}",
                remedy="take another checkpoint",
            )
        entry.chunks.append(chunk)

    def _loaded(self, name: str, chunk: Chunk, entry: TensorEntry) -> Tensor:
        if self._latest is None or self._latest[0] is not chunk:
            self._latest = None  # the memory of the one before, first
            tensor = chunk.load()
            if not isinstance(tensor, Tensor) or tensor.dtype != entry.dtype or tuple(tensor.shape) != chunk.slice[1]:
                raise RunError(f"a slice of {name} is not what its index says", code="TRN532", remedy="take another")
            self._latest = chunk, tensor
        return self._latest[1]


def tree(values: Mapping[str, tuple[tuple[Any, ...], Any]]) -> dict[str, Any]:
    """Values by path as nested dictionaries."""
    root: dict[str, Any] = {}
    for path, value in values.values():
        here = root
        for key in path[:-1]:
            here = here.setdefault(str(key), {})
        here[str(path[-1])] = value
    return root
