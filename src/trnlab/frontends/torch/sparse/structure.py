# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors turned, merged, made dense, brought into another layout, and read at the places of another."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.sparse import parts as raw
from trnlab.frontends.torch.sparse.parts import (
    COO,
    CSC,
    CSR,
    NO_FORM,
    SparseComponents,
    is_sparse,
    is_traced,
    repeats,
)
from trnlab.frontends.torch.sparse.places import (
    compressed,
    numbered,
    numbers,
    parts_of,
    rows_and_columns,
    same_places,
)

_OTHER = {CSR: CSC, CSC: CSR}
_turned = raw.Noted()  # indices that were turned: what they were


def turned(a: Tensor) -> Tensor:
    """The transpose of a matrix; turned twice it has the places that it had."""
    parts = raw.parts_of(a)
    shape = parts.shape[::-1]
    if parts.layout is not COO:
        return replace(parts, layout=_OTHER[parts.layout], shape=shape).tensor()
    (indices,) = parts.indices
    made = _turned_indices(raw.original(indices))
    if parts.each:
        made = raw.of_gradient(made.clone(), made)
    return replace(parts, shape=shape, indices=(made,), merged=False).tensor()


def _turned_indices(indices: Tensor) -> Tensor:
    known: Tensor | None = _turned.get(indices)
    return _turned.note(torch.stack((indices[1], indices[0])), indices) if known is None else known


def transposed(a: Tensor, dim0: int, dim1: int) -> Any:
    """Two dimensions exchanged."""
    first, second = sorted(d % a.dim() for d in (dim0, dim1))
    if first == second:
        return raw.parts_of(a).tensor()
    if a.dim() == 2 and raw.parts_of(a).split[0] == 2:
        return turned(a)
    parts = parts_of(a)
    if parts.layout is not COO or second >= parts.split[0]:
        return NO_FORM
    order = list(range(a.dim()))
    order[first], order[second] = second, first
    indices = torch.stack([parts.indices[0][d] for d in order[: parts.split[0]]])
    return replace(parts, shape=tuple(parts.shape[d] for d in order), indices=(indices,), merged=False).tensor()


def t(a: Tensor) -> Any:
    """The transpose of a matrix; a vector is its own."""
    return transposed(a, 0, a.dim() - 1)


def dense(a: Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> Any:
    """All elements; several of one place are added up."""
    parts = parts_of(a)
    if not numbered(parts) or parts.values.dtype is torch.bool:
        return NO_FORM
    rest = parts.shape[parts.split[0] :]
    zeros = torch.zeros((prod(parts.shape[: parts.split[0]]), *rest), dtype=a.dtype, device=a.device)
    made = zeros.index_add(0, numbers(parts), parts.values).view(parts.shape)
    return made if dtype is None else made.to(dtype)


def merged(a: Tensor) -> Any:
    """Elements by place, those of one place added up. How many there are then has to be read."""
    parts = parts_of(a)
    if parts.merged:
        return a
    if not numbered(parts) or not parts.count or parts.values.dtype is torch.bool:
        return NO_FORM
    places, order = torch.sort(numbers(parts), stable=True)
    new = torch.cat((torch.ones_like(places[:1]), (places[1:] != places[:-1]).to(places.dtype)))
    number = new.cumsum(0) - 1
    count = int(number[-1].item()) + 1
    indices = torch.zeros((count, parts.split[0]), dtype=places.dtype, device=a.device)
    indices = indices.index_add(0, number, parts.indices[0].t().index_select(0, order) * new[:, None])
    values = torch.zeros((count, *parts.values.shape[1:]), dtype=a.dtype, device=a.device)
    values = values.index_add(0, number, parts.values.index_select(0, order))
    return replace(parts, indices=(indices.t().contiguous(),), values=values, merged=True).tensor()


# -- layouts ---------------------------------------------------------------------------------------------------------


def to_layout(a: Tensor, *, layout: torch.layout | None = None, blocksize: Any = None, dense_dim: Any = None) -> Any:
    """A sparse or dense tensor in another sparse layout."""
    layout = COO if layout is None else layout
    if blocksize is not None or dense_dim not in (None, 0) or layout not in (COO, CSR, CSC):
        return NO_FORM
    if not is_sparse(a):
        return _from_dense(a, layout)
    return a if a.layout is layout else _changed(a, layout)


def _changed(a: Tensor, layout: torch.layout) -> Any:
    if a.dim() != 2:
        return NO_FORM
    if raw.parts_of(a).split[0] != 2:
        return NO_FORM
    if a.layout is COO and layout is not COO:
        a = _by_lines(a)
        if a is NO_FORM:
            return NO_FORM
    parts = raw.parts_of(a)
    rows, columns = rows_and_columns(parts)
    if layout is COO and parts.layout is CSR:
        indices = torch.stack((rows, columns))
        if parts.each:
            indices = raw.of_gradient(indices, indices.clone())
        return SparseComponents(COO, parts.shape, (indices,), parts.values, (2, 0), parts.merged, parts.each).tensor()
    if layout is CSR and parts.layout is COO:
        columns = columns if parts.merged else repeats(columns.clone())
        return replace(parts, layout=CSR, indices=(compressed(rows, parts.shape[0]), columns)).tensor()
    return NO_FORM


def _by_lines(a: Tensor) -> Any:
    """A matrix whose elements lie line by line: merged, or, while a step is captured, in which nobody can count them,
    only in order."""
    parts = parts_of(a)
    if parts.split[1] or not numbered(parts):
        return NO_FORM
    if parts.merged or not is_traced(a):
        return merged(a)
    order = torch.sort(numbers(parts), stable=True)[1]
    indices, values = parts.indices[0].index_select(1, order), parts.values.index_select(0, order)
    return replace(parts, indices=(indices,), values=values).tensor()


def _from_dense(a: Tensor, layout: torch.layout) -> Any:
    if not a.dim() or (layout is not COO and a.dim() != 2):
        return NO_FORM
    places = a.nonzero()
    values = a[tuple(places.t())]
    made = SparseComponents(COO, tuple(a.shape), (places.t().contiguous(),), values, (a.dim(), 0), True).tensor()
    return made if layout is COO else _changed(made, layout)


# -- at the places of another tensor ---------------------------------------------------------------------------------


def at_places(x: Tensor, mask: Tensor) -> Any:
    """The elements of x where `mask` has some, in its layout."""
    places = raw.parts_of(mask)
    if tuple(x.shape) != places.shape or not numbered(places):
        return NO_FORM
    if is_sparse(x):
        found = _looked_up(x, places)
        return NO_FORM if found is NO_FORM else places.with_values(found).tensor()
    table = x.reshape(prod(places.shape[: places.split[0]]), *places.shape[places.split[0] :])
    return places.with_values(table.index_select(0, numbers(places))).tensor()


def _looked_up(x: Tensor, places: SparseComponents) -> Any:
    if same_places(raw.parts_of(x), places):
        return raw.parts_of(x).values
    parts = raw.parts_of(x)
    if parts.each:
        return _first_of_each(parts, places)
    parts = parts_of(x)
    if x.layout is not COO or places.layout is not COO or parts.split != places.split or not parts.count:
        return NO_FORM
    if not parts.merged:
        x = merged(x)
        if x is NO_FORM:
            return NO_FORM
        parts = parts_of(x)
    return _found(numbers(parts), parts.values, numbers(places))


def _first_of_each(parts: SparseComponents, places: SparseComponents) -> Any:
    """The first value of each place of a gradient, whose values are each that of its place: no sum is wanted, and
    nobody has to count places."""
    own, order = torch.sort(numbers(parts), stable=True)
    return _found(own, parts.values.index_select(0, order), numbers(places))


def _found(own: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
    """The values of places among `own`, which are in order; zero elsewhere."""
    at = torch.searchsorted(own, wanted).clamp(max=own.numel() - 1)
    hit = own.index_select(0, at) == wanted
    hit = hit.view(-1, *[1] * (values.dim() - 1))
    return torch.where(hit, values.index_select(0, at), torch.zeros_like(values[:1]))
