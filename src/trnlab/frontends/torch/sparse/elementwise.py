# SPDX-License-Identifier: Apache-2.0
"""What is done to each stored element, and over those of a line: factors, sums, softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.sparse import parts as raw
from trnlab.frontends.torch.sparse.parts import COO, NO_FORM, is_sparse
from trnlab.frontends.torch.sparse.places import numbered, numbers, parts_of, rows_and_columns, same_places
from trnlab.frontends.torch.sparse.structure import at_places, dense, merged

LINEAR = ("neg", "positive")
OF_EACH = (
    "abs",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "erf",
    "expm1",
    "floor",
    "log1p",
    "relu",
    "round",
    "sgn",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
)


def of_each(name: str) -> Callable[..., Any]:
    """A function of each stored element that leaves zeros alone; what lies in one place is added up first."""
    op: Any = getattr(torch, name)
    return partial(_of_each, op, name not in LINEAR)


def _of_each(op: Any, once: bool, a: Tensor, *args: Any, **kwargs: Any) -> Any:
    parts = parts_of(a) if once else raw.parts_of(a)
    if once and not parts.merged:
        a = merged(a) if parts.layout is COO else NO_FORM
        if a is NO_FORM:
            return NO_FORM
        parts = parts_of(a)
    return parts.with_values(op(parts.values, *args, **kwargs)).tensor()


def scaled(op: Any) -> Callable[..., Any]:
    """A product or a quotient with a number, or a product with what has the same shape."""
    return partial(_scaled, op)


def _scaled(op: Any, a: Any, b: Any, **kwargs: Any) -> Any:
    if not is_sparse(a):
        return _scaled(op, b, a) if op is torch.mul else NO_FORM
    parts = raw.parts_of(a)
    if not isinstance(b, Tensor) or (b.dim() == 0 and not is_sparse(b)):
        return parts.with_values(op(parts.values, b, **kwargs)).tensor()
    if tuple(b.shape) != parts.shape or op is not torch.mul or not numbered(parts):
        return NO_FORM
    if is_sparse(b):
        others = parts_of(b)
        plain = not parts.each and parts.merged and others.merged and same_places(parts, others)
        return parts.with_values(parts.values * others.values).tensor() if plain else NO_FORM
    table = b.reshape(-1, *parts.shape[parts.split[0] :])
    return parts.with_values(parts.values * table.index_select(0, numbers(parts))).tensor()


def summed(a: Tensor, b: Tensor, *, alpha: Any = 1) -> Any:
    """The sum of two sparse tensors: the elements of both."""
    first, second = raw.parts_of(a), raw.parts_of(b)
    if first.each is not second.each or (first.each and not same_places(first, second)):
        first, second = parts_of(a), parts_of(b)
    if first.shape != second.shape or first.split != second.split or a.dtype is not b.dtype:
        return NO_FORM
    values = second.values if alpha == 1 else second.values * alpha
    if same_places(first, second):
        return first.with_values(first.values + values).tensor()
    if not (first.layout is second.layout is COO):
        return NO_FORM
    indices = torch.cat((first.indices[0], second.indices[0]), 1)
    return replace(first, indices=(indices,), values=torch.cat((first.values, values)), merged=False).tensor()


def total(a: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """The sum of all elements, dense."""
    return parts_of(a).values.sum(dtype=dtype)


def over_dimensions(a: Tensor, dim: Any) -> Any:
    """The sums over one dimension of a matrix, as a sparse vector."""
    parts = parts_of(a)
    dims = [d % a.dim() for d in dim]
    if parts.layout is not COO or parts.split != (2, 0) or len(dims) != 1:
        return NO_FORM
    (kept,) = {0, 1} - set(dims)
    return replace(
        parts, shape=(parts.shape[kept],), indices=(parts.indices[0][kept : kept + 1],), split=(1, 0), merged=False
    ).tensor()


def over_dimensions_backward(grad: Tensor, a: Tensor, dim: Any) -> Any:
    """The gradient of `over_dimensions`: that of its line for each element."""
    parts = parts_of(a)
    dims = [d % a.dim() for d in dim]
    if parts.layout is not COO or parts.split != (2, 0) or len(dims) != 1:
        return NO_FORM
    (kept,) = {0, 1} - set(dims)
    grad = dense(grad) if is_sparse(grad) else grad
    return parts.with_values(grad.index_select(0, parts.indices[0][kept])).tensor()


# -- softmax ---------------------------------------------------------------------------------------------------------


def softmax(a: Tensor, dim: int, half_to_float: bool) -> Any:
    """Softmax over the stored elements of each line."""
    return _softmax(a, dim, half_to_float, _softmax_of)


def log_softmax(a: Tensor, dim: int, half_to_float: bool) -> Any:
    """Its logarithm."""
    return _softmax(a, dim, half_to_float, _log_softmax_of)


def _softmax(a: Tensor, dim: int, half_to_float: bool, of: Callable[..., Tensor]) -> Any:
    if half_to_float or a.layout is not COO or parts_of(a).split != (2, 0):
        return NO_FORM
    a = merged(a)
    if a is NO_FORM:
        return NO_FORM
    parts = parts_of(a)
    line, size = _lines(a, dim)
    least = torch.full((size,), float("-inf"), dtype=a.dtype, device=a.device)
    most = least.scatter_reduce(0, line, parts.values, "amax").index_select(0, line)
    shifted = parts.values - most
    sums = _per_line(shifted.exp(), line, size)
    return parts.with_values(of(shifted, sums)).tensor()


def _softmax_of(shifted: Tensor, sums: Tensor) -> Tensor:
    return shifted.exp() / sums


def _log_softmax_of(shifted: Tensor, sums: Tensor) -> Tensor:
    return shifted - sums.log()


def softmax_backward(grad: Tensor, output: Tensor, dim: int, a: Tensor) -> Any:
    """y (g - sum of y g over the line)."""
    given = _of_same_places(grad, output)
    if given is NO_FORM:
        return NO_FORM
    parts, (line, size) = parts_of(output), _lines(output, dim)
    y = parts.values
    return parts.with_values(y * (given - _per_line(y * given, line, size))).tensor()


def log_softmax_backward(grad: Tensor, output: Tensor, dim: int, a: Tensor) -> Any:
    """g - exp(y) (sum of g over the line)."""
    given = _of_same_places(grad, output)
    if given is NO_FORM:
        return NO_FORM
    parts, (line, size) = parts_of(output), _lines(output, dim)
    return parts.with_values(given - parts.values.exp() * _per_line(given, line, size)).tensor()


def _of_same_places(grad: Tensor, like: Tensor) -> Any:
    found = at_places(grad, like)
    return NO_FORM if found is NO_FORM else parts_of(found).values


def _lines(a: Tensor, dim: int) -> tuple[Tensor, int]:
    """The line along `dim` that each element is in: its index in the other dimension."""
    other = 1 - dim % 2
    return rows_and_columns(parts_of(a))[other], a.shape[other]


def _per_line(values: Tensor, line: Tensor, size: int) -> Tensor:
    sums = torch.zeros(size, dtype=values.dtype, device=values.device).index_add(0, line, values)
    return sums.index_select(0, line)
