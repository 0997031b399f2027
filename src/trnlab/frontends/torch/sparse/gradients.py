# SPDX-License-Identifier: Apache-2.0
"""Products of sparse matrices, and their gradients: that of the values is computed where there are values.

PyTorch's own formula merges the matrix first, and makes a dense product as large as the matrix is to read from. That
of an embedding leaves out the elements of its padding, whose number hangs on values: captured steps have zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.device.dispatch import implement
from trnlab.frontends.torch.device.host_ops import boxed
from trnlab.frontends.torch.pytorch.fakes import FakeTensor
from trnlab.frontends.torch.sparse.parts import COO, gradient, is_sparse
from trnlab.frontends.torch.sparse.places import parts_of, rows_and_columns

_aten = torch.ops.aten
BAGS = _aten._embedding_bag_backward.default
_MEAN = 1  # of the ways to add up


class _Product(torch.autograd.Function):
    """A sparse matrix times a dense one."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(a, x)
        result: Tensor = _aten.mm.default(a, x)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        a, x = ctx.saved_tensors
        of_a = _at_places_of(a, grad, x) if ctx.needs_input_grad[0] else None
        return of_a, _aten.mm.default(a.t(), grad) if ctx.needs_input_grad[1] else None


def _at_places_of(a: Tensor, grad: Tensor, x: Tensor) -> Tensor:
    """grad times the transpose of x, where a has elements."""
    parts = parts_of(a)
    rows, columns = rows_and_columns(parts)
    values = (grad.index_select(0, rows) * x.index_select(0, columns)).sum(1)
    return gradient(parts, values).tensor()


def product(a: Tensor, b: Tensor) -> Tensor:
    """The kernel of `torch.sparse.mm`."""
    if is_sparse(a) and is_sparse(b):
        both: Tensor = _aten._sparse_sparse_matmul.default(a, b)
        return both
    if not is_sparse(a):
        return product(b.t(), a.t()).t()
    made: Tensor = _Product.apply(_seen(a), b)  # type: ignore[no-untyped-call]
    return made


def sum_with_product(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """The kernel of `torch.sparse.addmm`."""
    made = product(a, b)
    made = made if alpha == 1 else made * alpha
    return made if beta == 0 else made + (x if beta == 1 else x * beta)


def reduced(a: Tensor, b: Tensor, reduce: str) -> Tensor:
    """The kernel of `torch.sparse.mm` with a reduction: means are sums by the number of elements in a line."""
    if reduce not in ("sum", "mean") or not is_sparse(a) or is_sparse(b):
        other: Tensor = _aten._sparse_mm_reduce_impl.default(a, b, reduce)[0]
        return other
    if reduce == "sum":
        return product(a, b)
    rows = rows_and_columns(parts_of(a))[0]
    counts = torch.zeros(a.shape[0], dtype=b.dtype, device=b.device)
    counts = counts.index_add(0, rows, torch.ones(rows.shape, dtype=b.dtype, device=b.device))
    return product(a, b) / counts.clamp(min=1)[:, None]


def total(a: Tensor) -> Tensor:
    """The kernel of `torch.sparse.sum` of everything: a product with ones, for which nothing has to be merged."""
    if a.dim() != 2 or parts_of(a).split != (2, 0):
        return a.coalesce().values().sum()
    return product(a, torch.ones((a.shape[1], 1), dtype=a.dtype, device=a.device)).sum()


def of_embedding(grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_by_freq: bool) -> Tensor:
    """The kernel of the sparse gradient of an embedding's table."""
    if padding_idx != -1 and isinstance(grad, FakeTensor):
        grad = torch.where((indices == padding_idx).unsqueeze(-1), 0.0, grad)
        padding_idx = -1
    op = _aten.embedding_sparse_backward.default
    made: Tensor = op.decompose(grad, indices, num_weights, padding_idx, scale_by_freq)
    return made


def of_bags(grad: Tensor, indices: Tensor, offsets: Tensor, *others: Any) -> Tensor:
    """The gradient of an embedding's table whose rows were added up in bags: sparse, or dense as ever."""
    _, sizes, _, num_weights, scale_by_freq, mode, sparse, weights, *padding = others
    if not sparse:
        dense: Tensor = boxed(BAGS, grad, indices, offsets, *others)
        return dense
    starts = torch.zeros(indices.shape[0] + 1, dtype=offsets.dtype, device=offsets.device)
    bags = starts.index_add(0, offsets, torch.ones_like(offsets)).cumsum(0)[:-1] - 1
    rows = grad.index_select(0, bags)
    if mode == _MEAN:
        rows = rows / sizes.to(grad.dtype).unsqueeze(1).index_select(0, bags)
    if weights is not None:
        rows = rows * weights.unsqueeze(1)
    return of_embedding(rows, indices, num_weights, padding[0] if padding else -1, scale_by_freq)


def _seen(a: Tensor) -> Tensor:
    """A tensor whose gradient the user can look at, in which PyTorch has each place once."""
    return a.coalesce() if a.requires_grad and a.is_leaf and a.layout is COO else a


def register(aten: torch.library.Library) -> None:
    """Take the place of what PyTorch has for sparse tensors alone."""
    implement(aten, BAGS, of_bags, "PrivateUse1")
    for name, kernel in (
        ("_sparse_mm", product),
        ("_sparse_addmm", sum_with_product),
        ("_sparse_sum", total),
        ("_sparse_mm.reduce", reduced),
        ("embedding_sparse_backward", of_embedding),
    ):
        implement(aten, name, kernel, "AutogradPrivateUse1")
