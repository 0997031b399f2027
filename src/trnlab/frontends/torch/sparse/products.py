# SPDX-License-Identifier: Apache-2.0
"""Products with sparse matrices: rows that are gathered, scaled by the values, and added up where they belong."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.sparse.parts import COO, NO_FORM, is_sparse
from trnlab.frontends.torch.sparse.places import numbered, numbers, parts_of, rows_and_columns
from trnlab.frontends.torch.sparse.structure import turned


def times(values: Tensor, lines: Tensor, others: Tensor, size: int, x: Tensor) -> Tensor:
    """Line i of the result is the sum of the lines `others[j]` of x, times `values[j]`, over all j with
    lines[j] = i."""
    scale = values if x.dim() == 1 else values[:, None]
    result = torch.zeros((size, *x.shape[1:]), dtype=x.dtype, device=x.device)
    return result.index_add(0, lines, x.index_select(0, others) * scale)


def mm(a: Tensor, b: Tensor) -> Any:
    """A matrix product, one of the two sparse."""
    if is_sparse(a) and is_sparse(b):
        return NO_FORM
    if not is_sparse(a):
        return _turned_product(a, b)
    parts = parts_of(a)
    if parts.split[1] or a.dim() != 2 or a.dtype is not b.dtype or a.shape[1] != b.shape[0]:
        return NO_FORM  # the host refuses it as PyTorch does
    rows, columns = rows_and_columns(parts)
    return times(parts.values, rows, columns, a.shape[0], b)


def mv(a: Tensor, b: Tensor) -> Any:
    """A matrix times a vector."""
    return mm(a, b) if b.dim() == 1 and is_sparse(a) and not is_sparse(b) else NO_FORM


def bmm(a: Tensor, b: Tensor) -> Any:
    """Products of batches: one with the matrices beside each other."""
    if not is_sparse(a) or is_sparse(b) or a.layout is not COO:
        return NO_FORM
    parts = parts_of(a)
    if parts.split != (3, 0) or a.dtype is not b.dtype or (a.shape[0], a.shape[2]) != tuple(b.shape[:2]):
        return NO_FORM
    batch, rows, columns = parts.indices[0]
    count, height, width = parts.shape
    lines, others = batch * height + rows, batch * width + columns
    return times(parts.values, lines, others, count * height, b.reshape(count * width, -1)).view(count, height, -1)


def addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta x + alpha a b."""
    if is_sparse(x):
        return NO_FORM
    product = mm(a, b)
    if product is NO_FORM:
        return NO_FORM
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return product + (x if beta == 1 else x * beta)


def addmv(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta x + alpha a b, b a vector."""
    return addmm(x, a, b, beta=beta, alpha=alpha) if b.dim() == 1 else NO_FORM


def sampled(a: Tensor, b: Tensor, c: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta a + alpha (b c) where a has elements."""
    if is_sparse(b) or is_sparse(c) or a.dim() != 2:
        return NO_FORM
    parts = parts_of(a)
    rows, columns = rows_and_columns(parts)
    product = (b.index_select(0, rows) * c.t().index_select(0, columns)).sum(1)
    product = product if alpha == 1 else product * alpha
    return parts.with_values(product if beta == 0 else parts.values * beta + product).tensor()


def added(x: Tensor, a: Tensor, alpha: Any = 1) -> Any:
    """The dense x + alpha a."""
    if is_sparse(x) or tuple(x.shape) != tuple(a.shape) or x.dtype is not a.dtype:
        return NO_FORM
    return _added(x.clone(), a, alpha)


def added_to(x: Tensor, a: Tensor, alpha: Any = 1) -> Any:
    """`added`, in the memory of x: only where a has elements something is done."""
    if is_sparse(x) or tuple(x.shape) != tuple(a.shape) or x.dtype is not a.dtype:
        return NO_FORM
    if not x.is_contiguous():
        return x.copy_(added(x, a, alpha))
    return _added(x, a, alpha)


def _added(x: Tensor, a: Tensor, alpha: Any) -> Any:
    parts = parts_of(a)
    if not numbered(parts):
        return NO_FORM
    table = x.view(prod(parts.shape[: parts.split[0]]), *parts.shape[parts.split[0] :])
    values = parts.values if alpha == 1 else parts.values * alpha
    table.index_add_(0, numbers(parts), values)
    return x


def _turned_product(a: Tensor, b: Tensor) -> Any:
    """A dense matrix times a sparse one."""
    product: Any = mm(turned(b), a.t()) if parts_of(b).split == (2, 0) else NO_FORM
    return NO_FORM if product is NO_FORM else product.t()
