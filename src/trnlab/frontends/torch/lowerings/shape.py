# SPDX-License-Identifier: Apache-2.0
"""Views and copies that move elements and compute nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.frontends.torch.lowerings.registry import LoweringSite, dim_of, lowers
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import bool_, int32

# Operators that only give another shape.
VIEWS = (
    "view.default",
    "_unsafe_view.default",
    "reshape.default",
    "unsqueeze.default",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "_reshape_alias.default",
)


@lowers(*VIEWS)
def view(site, x, *rest):
    return site.shaped(x)


@lowers("permute.default")
def permute(site, x, dims):
    return _transposed(site, x, [d % len(x.shape) for d in dims])


@lowers("t.default")
def t(site, x):
    return _transposed(site, x, list(reversed(range(len(x.shape)))))


@lowers("transpose.int")
def transpose(site, x, first, second):
    if not x.shape:
        return x
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    return _transposed(site, x, order)


def _transposed(site: LoweringSite, x: Value, order: list[int]) -> Value:
    return x if order == sorted(order) else site.b.transpose(x, order)


@lowers("expand.default")
def expand(site, x, size, implicit=False):
    return site.b.broadcast_to(x, site.shape)


def bounds(size: int, start: Any, end: Any) -> tuple[int, int]:
    """Python's rule for slices with missing, negative or too large ends."""
    begin, stop, _ = slice(start, end).indices(size)
    return begin, max(begin, stop)


@lowers("slice.Tensor")
def slice_(site, x, dim=0, start=None, end=None, step=1):
    dim = dim_of(dim, len(x.shape))
    begin, stop = bounds(x.shape[dim], start, end)
    if (begin, stop, step) == (0, x.shape[dim], 1):
        return x
    return site.b.slice_dim(x, dim, begin, stop, step)


@lowers("select.int")
def select(site, x, dim, index):
    dim, index = dim % len(x.shape), index % x.shape[dim]
    return site.shaped(site.b.slice_dim(x, dim, index, index + 1))


@lowers("split_with_sizes.default")
def split_with_sizes(site, x, sizes, dim=0):
    dim, parts, begin = dim % len(x.shape), [], 0
    for size in sizes:
        parts.append(site.b.slice_dim(x, dim, begin, begin + size))
        begin += size
    return tuple(parts)


@lowers("split.Tensor")
def split(site, x, size, dim=0):
    """In parts of `size`; of nothing one part, which is empty."""
    whole = x.shape[dim]
    return split_with_sizes(site, x, [min(size, whole - i) for i in range(0, whole, size)] or [0], dim)


@lowers("unbind.int")
def unbind(site, x, dim=0):
    dim %= len(x.shape)
    shape = x.shape[:dim] + x.shape[dim + 1 :]
    return tuple(site.b.reshape(site.b.slice_dim(x, dim, i, i + 1), shape) for i in range(x.shape[dim]))


@lowers("cat.default")
def cat(site, xs, dim=0):
    kept = [site.cast(x) for x in xs if x.shape != (0,)]
    if not kept:
        return site.b.constant(0, site.dtype, site.shape)
    return kept[0] if len(kept) == 1 else site.b.concatenate(kept, dim % len(site.shape))


@lowers("stack.default")
def stack(site, xs, dim=0):
    dim %= len(site.shape)
    parts = [site.b.reshape(site.cast(x), (*x.shape[:dim], 1, *x.shape[dim:])) for x in xs]
    return site.b.concatenate(parts, dim)


@lowers("repeat.default")
def repeat(site, x, repeats):
    b, rank = site.b, len(repeats)
    sizes = (1,) * (rank - len(x.shape)) + x.shape
    wide = [n for pair in zip(repeats, sizes) for n in pair]
    spread = b.broadcast_in_dim(b.reshape(x, sizes), wide, range(1, 2 * rank, 2))
    return site.shaped(spread)


@lowers("constant_pad_nd.default")
def constant_pad(site, x, pad, value=0):
    rank = len(x.shape)
    low, high = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):  # pairs from the last dimension backwards
        low[rank - 1 - i], high[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return padded(site, x, low, high, value)


def padded(site: LoweringSite, x: Value, low: list[int], high: list[int], value: Any = 0) -> Value:
    """x with `value` around it; a negative amount cuts elements off instead."""
    begin = [min(max(-n, 0), size) for n, size in zip(low, x.shape)]
    end = [max(size - max(-n, 0), start) for n, size, start in zip(high, x.shape, begin)]
    if (begin, end) != ([0] * len(x.shape), list(x.shape)):
        x = site.b.slice(x, begin, end)
    low, high = [max(n, 0) for n in low], [max(n, 0) for n in high]
    return site.b.pad(x, low, high, value=value) if any(low) or any(high) else x


def _spread(site: LoweringSite, x: Value, dim: int, step: int, place: int) -> Value:
    """x with `place` zeros before each element along `dim`, and as many behind as make `step` of it."""
    b, shape = site.b, x.shape
    apart = b.reshape(x, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
    low, high = [0] * len(apart.shape), [0] * len(apart.shape)
    low[dim + 1], high[dim + 1] = place, step - 1 - place
    return b.reshape(b.pad(apart, low, high), (*shape[:dim], shape[dim] * step, *shape[dim + 1 :]))


def _padded(site: LoweringSite, x: Value, dim: int, begin: int, stop: int, step: int = 1) -> Value:
    """x placed at begin:stop:step of dimension `dim` of zeros of the result's shape."""
    if step > 1:
        x, begin = _spread(site, x, dim, step, begin % step), begin - begin % step
    low, high = [0] * len(x.shape), [0] * len(x.shape)
    low[dim], high[dim] = begin, site.shape[dim] - begin - x.shape[dim]
    return padded(site, x, low, high)


@lowers("slice_backward.default")
def slice_backward(site, grad, sizes, dim, start, end, step):
    dim %= len(sizes)
    return _padded(site, grad, dim, *bounds(sizes[dim], start, end), step)


@lowers("select_backward.default")
def select_backward(site, grad, sizes, dim, index):
    dim, index = dim % len(sizes), index % sizes[dim]
    grad = site.b.reshape(grad, (*grad.shape[:dim], 1, *grad.shape[dim:]))
    return _padded(site, grad, dim, index, index + 1)


@lowers("slice_scatter.default")
def slice_scatter(site, x, source, dim=0, start=None, end=None, step=1):
    """x with x[start:end:step] along `dim` replaced."""
    b, dim = site.b, dim_of(dim, len(x.shape))
    begin, stop = bounds(x.shape[dim], start, end)
    if stop <= begin:
        return x
    if step != 1:
        return _strided_scatter(site, x, site.cast(source), dim, begin, step)
    parts = [b.slice_dim(x, dim, 0, begin), site.cast(source), b.slice_dim(x, dim, stop, x.shape[dim])]
    kept = [p for p in parts if p.shape[dim]]
    return kept[0] if len(kept) == 1 else b.concatenate(kept, dim)


def _strided_scatter(site: LoweringSite, x: Value, source: Value, dim: int, begin: int, step: int) -> Value:
    """The source spread to every step-th place; a counter says where those are."""
    b, size = site.b, x.shape[dim]
    spread, first = _spread(site, source, dim, step, begin % step), begin - begin % step
    low, high = [0] * len(x.shape), [0] * len(x.shape)
    low[dim], high[dim] = first, size - first - spread.shape[dim]
    inside = np.zeros(size, bool)
    inside[begin : begin + source.shape[dim] * step : step] = True
    mask = b.constant(inside, bool_, (size,))
    shape = [size if d == dim else 1 for d in range(len(x.shape))]
    return b.select(b.broadcast_to(b.reshape(mask, shape), x.shape), padded(site, spread, low, high), x)


@lowers("select_scatter.default")
def select_scatter(site, x, source, dim, index):
    dim, index = dim % len(x.shape), index % x.shape[dim]
    source = site.b.reshape(source, (*source.shape[:dim], 1, *source.shape[dim:]))
    return slice_scatter(site, x, source, dim, index, index + 1)


def _triangle(site: LoweringSite, x: Value, diagonal: int, direction: str) -> Value:
    b, shape = site.b, x.shape[-2:]
    offset = b.subtract(b.iota(shape, int32, 1), b.iota(shape, int32, 0))
    keep = b.compare(offset, direction, diagonal)
    if x.dtype.name == "bool":
        return b.and_(x, b.broadcast_to(keep, x.shape))
    return b.select(keep, x, 0)


@lowers("tril.default")
def tril(site, x, diagonal=0):
    return _triangle(site, x, diagonal, "LE")


@lowers("triu.default")
def triu(site, x, diagonal=0):
    return _triangle(site, x, diagonal, "GE")


@lowers("roll.default")
def roll(site, x, shifts, dims=()):
    """Elements move by `shifts` along `dims`, those that leave come in at the other end; of a flat tensor without
    `dims`."""
    b, flat = site.b, x if list(dims) else site.b.reshape(x, (-1,))
    for shift, dim in zip(shifts, dims or (0,), strict=True):
        dim = dim_of(dim, len(flat.shape))
        size = flat.shape[dim]
        first = -shift % size if size else 0
        if first:
            flat = b.concatenate([b.slice_dim(flat, dim, first, size), b.slice_dim(flat, dim, 0, first)], dim)
    return site.shaped(flat)
