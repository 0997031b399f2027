# SPDX-License-Identifier: Apache-2.0
"""What a sparse tensor is made of, and how one is made: PyTorch's object around dense tensors, whatever their device.

PyTorch's own kernels for the host make and read these objects without a look at memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from trnlab.frontends.torch.device.dlpack import no_sparse
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.pytorch.dispatcher import DispatchKey, DispatchKeySet, modes_off
from trnlab.frontends.torch.pytorch.fakes import FakeTensor

_aten = torch.ops.aten
COO_KEY, COMPRESSED_KEY = DispatchKeySet(DispatchKey.SparseCPU), DispatchKeySet(DispatchKey.SparseCsrCPU)
COO, CSR, CSC = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc
NO_FORM = object()  # in the place of a result: there is no form of this
_MADE_OF = {  # the readers of each layout, indices first
    COO: (_aten._indices.default, _aten._values.default),
    CSR: (_aten.crow_indices.default, _aten.col_indices.default, _aten.values.default),
    CSC: (_aten.ccol_indices.default, _aten.row_indices.default, _aten.values.default),
}
LAYOUTS = tuple(_MADE_OF)


@dataclass(frozen=True)
class SparseComponents:
    """A sparse tensor taken apart."""

    layout: torch.layout
    shape: tuple[int, ...]
    indices: tuple[Tensor, ...]  # one tensor in COO, else what is compressed and what is plain
    values: Tensor
    split: tuple[int, int]  # how many dimensions the indices number, and how many lie dense behind
    merged: bool  # no place occurs twice
    # where one does, each of its values is that of the place, as in gradients; otherwise they are parts of it
    each: bool = False

    @property
    def count(self) -> int:
        """How many elements are stored."""
        return self.values.shape[0]

    def with_values(self, values: Tensor) -> SparseComponents:
        """The same places with other values."""
        return replace(self, values=values)

    def tensor(self) -> Tensor:
        """The sparse tensor of these parts."""
        kwargs = {"dtype": self.values.dtype, "layout": self.layout, "device": self.values.device}
        made: Tensor
        if self.layout is COO:
            made = _aten._sparse_coo_tensor_with_dims_and_tensors.default.redispatch(
                COO_KEY, *self.split, self.shape, *self.indices, self.values, is_coalesced=self.merged, **kwargs
            )
        else:
            made = _aten.sparse_compressed_tensor.comp_plain_value_size.redispatch(
                COMPRESSED_KEY, *self.indices, self.values, self.shape, **kwargs
            )
        return made


def is_sparse(value: Any) -> bool:
    """Whether a tensor is one of those that this package knows."""
    return isinstance(value, Tensor) and value.layout in _MADE_OF


def parts_of(tensor: Tensor) -> SparseComponents:
    """Take a sparse tensor apart: the parts share its memory."""
    if tensor.layout is COO:
        indices, values = (op.redispatch(COO_KEY, tensor) for op in _MADE_OF[COO])
        split = tensor.sparse_dim(), tensor.dense_dim()
        return SparseComponents(
            COO, tuple(tensor.shape), (indices,), values, split, tensor.is_coalesced(), is_each(indices)
        )
    if tensor.layout not in _MADE_OF:
        raise no_sparse(tensor.layout)
    compressed, plain, values = (op.redispatch(COMPRESSED_KEY, tensor) for op in _MADE_OF[tensor.layout])
    merged = _repeating.get(plain) is None
    return SparseComponents(
        tensor.layout, tuple(tensor.shape), (compressed, plain), values, (tensor.dim(), 0), merged, is_each(plain)
    )


class Noted:
    """Something that is known of memory, for as long as there is the memory."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, Any]] = {}

    def get(self, tensor: Tensor) -> Any:
        """What was noted, None if nothing was."""
        known = self._known.get(tensor.untyped_storage()._cdata)
        return None if known is None or known[0].expired() else known[1]

    def note(self, tensor: Tensor, value: Any) -> Tensor:
        """Note something; returns the tensor."""
        for key in [key for key, (weak, _) in self._known.items() if weak.expired()]:
            del self._known[key]
        storage = tensor.untyped_storage()
        self._known[storage._cdata] = StorageWeakRef(storage), value
        return tensor


_repeating = Noted()  # indices of compressed layouts that may occur twice in a line
_each = Noted()  # indices of gradients: those that they are of


def repeats(plain: Tensor) -> Tensor:
    """Say of the indices of a compressed layout that one line may have some twice; returns them."""
    return _repeating.note(plain, True)


def is_each(indices: Tensor) -> bool:
    """Whether indices are those of a gradient (see `SparseComponents.each`)."""
    return _each.get(indices) is not None


def gradient(parts: SparseComponents, values: Tensor) -> SparseComponents:
    """Values of a gradient, one for each element."""
    if parts.merged or parts.each:
        return parts.with_values(values)
    *others, last = parts.indices
    return replace(parts, indices=(*others, of_gradient(last.clone(), last)), values=values, each=True)


def of_gradient(indices: Tensor, original: Tensor) -> Tensor:
    """Say of indices that they are a gradient's, of the elements at `original`; returns them."""
    if _repeating.get(original) is not None:
        repeats(indices)
    return _each.note(indices, original)


def original(indices: Tensor) -> Tensor:
    """The indices that those of a gradient are of; any others themselves."""
    known = _each.get(indices)
    return indices if known is None else known


def is_traced(tensor: Tensor) -> bool:
    """Whether a sparse tensor is of a capture: what it is made of has no values."""
    with modes_off():  # to whom a real tensor would look like one of theirs
        return isinstance(members(tensor)[-1], FakeTensor)


def members(tensor: Tensor) -> tuple[Tensor, ...]:
    """Indices and values of a sparse tensor."""
    key = COO_KEY if tensor.layout is COO else COMPRESSED_KEY
    return tuple(op.redispatch(key, tensor) for op in _MADE_OF[tensor.layout])


# -- among the arguments of a captured step -------------------------------------------------------------------------


class Opened:
    """A sparse tensor among the arguments of a step, as a node whose leaves are its dense tensors."""

    def __init__(self, leaves: list[Any], about: tuple[Any, ...]) -> None:
        self.leaves, self.about = leaves, about

    @classmethod
    def of(cls, tensor: Tensor) -> Opened:
        """Take apart. What requires a gradient is the values."""
        with modes_off(), torch.no_grad():
            parts = parts_of(tensor.detach())
        return cls(
            [*(i.detach() for i in parts.indices), parts.values.detach()],
            (parts.layout, parts.shape, parts.split, parts.merged),
        )

    def closed(self) -> Tensor:
        """Put together of the leaves that there are now."""
        layout, shape, split, merged = self.about
        *indices, values = self.leaves
        return SparseComponents(layout, shape, tuple(indices), values, split, merged).tensor()


pytree.register_pytree_node(
    Opened, lambda x: (list(x.leaves), x.about), lambda leaves, about: Opened(list(leaves), about)
)


def opened(value: Any) -> Any:
    """Arguments of a step with every sparse tensor taken apart."""
    return pytree.tree_map(lambda x: Opened.of(x) if is_sparse(x) else x, value)


def closed(value: Any) -> Any:
    """The inverse of `opened`."""
    return pytree.tree_map(
        lambda x: x.closed() if isinstance(x, Opened) else x, value, is_leaf=lambda x: isinstance(x, Opened)
    )
