# SPDX-License-Identifier: Apache-2.0
"""The tensors of a collective as one flat buffer, of which nothing is read before somebody asks for its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trnlab.errors import CollectiveError
from trnlab.frontends.torch.device.dlpack import as_host, to_numpy_alias
from trnlab.frontends.torch.distributed import sites
from trnlab.frontends.torch.pytorch.dispatcher import is_handled_in_python

Array = npt.NDArray[Any]


class Flat:
    """Tensors of one format, one after the other, flat. Without tensors: of a result that this rank does not keep.

    each: elements that every tensor takes up; 0 where it takes up its own. before: elements in front of the first.
    Raises CollectiveError (TRN275) for tensors that are not dense.
    """

    def __init__(self, tensors: Sequence[Tensor], each: int = 0, before: int = 0) -> None:
        self.tensors = tuple(tensors)
        self._each, self._before = each, before
        for tensor in self.tensors:
            if tensor.is_sparse or tensor.layout != torch.strided:
                raise CollectiveError(
                    "collectives take dense tensors", code="TRN275", got=tensor.layout, remedy="x.to_dense() before"
                )

    @property
    def elements(self) -> int:
        """How many elements it has, padding included."""
        return self._before + sum(self._each or tensor.numel() for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.elements * self.tensors[0].element_size() if self.tensors else 0

    @property
    def has_memory(self) -> bool:
        """Whether its tensors have values: not those of a script that is followed without any."""
        return not any(tensor.is_meta or is_handled_in_python(tensor) for tensor in self.tensors)

    def read(self) -> Array:
        """A copy of the values; zeros between the tensors. Raises CollectiveError (TRN275) for tensors of the host
        that have no memory of their own."""
        for tensor in self.tensors:
            if is_handled_in_python(tensor):
                raise CollectiveError(
                    "collectives of the host's tensors take tensors with memory of their own",
                    code="TRN275",
                    where=sites.site(),
                    got=type(tensor).__name__,
                    remedy="give it the tensors inside, one after the other",
                )
        views = [_memory(tensor).reshape(-1) for tensor in self.tensors]
        if len(views) == 1 and views[0].size == self.elements:
            return views[0].copy()
        values = np.zeros(self.elements, views[0].dtype)
        for place, view in zip(self._places(), views):
            values[place] = view
        return values

    def like(self) -> Array:
        """An array of the format and size of its only tensor, of which nothing is read."""
        return _memory(self.tensors[0]).reshape(-1)

    def write(self, values: Array) -> None:
        """Put flat values into the tensors; those for the padding are left out."""
        for place, tensor in zip(self._places(), self.tensors):
            target = _memory(tensor)
            target[...] = values[place].reshape(target.shape)

    def _places(self) -> Iterator[slice]:
        first = self._before
        for tensor in self.tensors:
            yield slice(first, first + tensor.numel())
            first += self._each or tensor.numel()


def _memory(tensor: Tensor) -> Array:
    """The tensor's own memory."""
    return to_numpy_alias(as_host(tensor.detach()))
