# SPDX-License-Identifier: Apache-2.0
"""Rows by number, and elements by number within rows.

Rows go through the DMA engines' indirect addressing (gather and scatter of rows). Within a row the chip has no cheap
indirect read, so elements are picked by comparing a counter with the index: a mask, then a select and a sum.

Letters: V rows of a table or classes, C columns.
"""

from __future__ import annotations

from typing import Any

from trnlab.frontends.torch.lowerings.registry import Refused, Site, dims_of, lowers
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import bool_, int32


def one_hot(site: Site, ids: Value, classes: int) -> Value:
    """bool [..., classes]: true where the last index equals ids [...]; an id outside matches nothing."""
    b, shape = site.b, (*ids.shape, classes)
    column = b.reshape(b.convert(ids, int32), (*ids.shape, 1))
    return b.compare(b.iota(shape, int32, len(ids.shape)), "EQ", column)


def _counts(ids: Value) -> bool:
    """Whether ids are known to be 0, 1, 2, ..., as positions in a sequence are."""
    source = ids.op
    if source is not None and source.name == "reshape" and all(n == 1 for n in ids.shape[:-1]):
        source = source.operands[0].op
    return source is not None and source.name == "iota" and len(source.result.shape) == 1


@lowers("embedding.default")
def embedding(site, table, ids, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    if _counts(ids):
        return site.shaped(site.b.slice_dim(table, 0, 0, ids.type.size))
    return site.b.take_rows(table, ids)


@lowers("embedding_dense_backward.default")
def embedding_backward(site, grad, ids, rows, padding_idx, scale_grad_by_freq):
    """Gradient of the table [V, C]: each row the sum over the places that read it."""
    if scale_grad_by_freq:
        raise Refused("gradients scaled by how often a row was read have no lowering", "leave scale_grad_by_freq off")
    b, grad = site.b, site.wide(grad)
    if _counts(ids) and padding_idx < 0:
        count = ids.type.size
        return site.cast(b.pad(b.reshape(grad, (count, grad.shape[-1])), (0, 0), (rows - count, 0)))
    if padding_idx >= 0:
        grad = b.select(b.reshape(b.compare(ids, "NE", padding_idx), (*ids.shape, 1)), grad, 0.0)
    return site.cast(b.scatter_add_rows(ids, grad, rows))


# -- elements along a dimension -------------------------------------------------------------------------------------


def _last(site: Site, x: Value, dim: int) -> Value:
    """x with dimension `dim` moved to the end."""
    order = [d for d in range(len(x.shape)) if d != dim] + [dim]
    return x if order == sorted(order) else site.b.transpose(x, order)


def _unlast(site: Site, x: Value, dim: int) -> Value:
    order = list(range(len(x.shape) - 1))
    order.insert(dim, len(x.shape) - 1)
    return x if order == sorted(order) else site.b.transpose(x, order)


def _cropped(site: Site, x: Value, lead: tuple[int, ...]) -> Value:
    """x with its leading dimensions cut to `lead`, as PyTorch does when the index is the smaller."""
    if x.shape[:-1] == lead:
        return x
    return site.b.slice(x, [0] * len(x.shape), [*lead, x.shape[-1]])


def _bools(site: Site, x: Value) -> Value:
    """Selected sums need numbers."""
    return site.b.convert(x, int32) if x.dtype is bool_ else x


@lowers("gather.default")
def gather(site, x, dim, index, sparse_grad=False):
    b = site.b
    if not x.shape:
        return x
    dim %= len(x.shape)
    index = _last(site, index, dim)  # [..., J]
    x = _cropped(site, _last(site, _bools(site, x), dim), index.shape[:-1])
    mask = one_hot(site, index, x.shape[-1])  # [..., J, V]
    rows = b.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    return _unlast(site, site.cast(b.reduce(b.select(mask, rows, 0), (-1,))), dim)


@lowers("scatter.value")
def scatter_value(site, x, dim, index, value):
    return _assign(site, x, dim, index, value)


@lowers("scatter.src")
def scatter_src(site, x, dim, index, source):
    return _assign(site, x, dim, index, source)


def _assign(site: Site, x: Value, dim: int, index: Value, source: Any) -> Value:
    """x with the elements named by `index` replaced; the leading sizes of `index` are those of x."""
    b, dim = site.b, dim % len(x.shape)
    moved, index = _last(site, x, dim), _last(site, index, dim)
    if index.shape[:-1] != moved.shape[:-1]:
        raise Refused("scatter with an index smaller than its target; slice the target first")
    mask = one_hot(site, index, moved.shape[-1])  # [..., J, V]
    if index.shape[-1] == 1 or not isinstance(source, Value):
        hit = b.reduce(mask, (-2,), "or")
        value = source
        if isinstance(source, Value):
            value = b.slice(_last(site, source, dim), [0] * len(index.shape), index.shape)
        return _unlast(site, b.select(hit, value, moved), dim)
    raise Refused("scatter of several elements per row; use scatter_add into zeros, or gather the other way round")


@lowers("scatter_add.default")
def scatter_add(site, x, dim, index, source):
    b, dim = site.b, dim % len(x.shape)
    moved, index = _last(site, x, dim), _last(site, index, dim)
    if index.shape[:-1] != moved.shape[:-1]:
        raise Refused("scatter_add with an index smaller than its target; slice the target first")
    source = b.slice(_last(site, source, dim), [0] * len(index.shape), index.shape)
    spread = b.select(one_hot(site, index, moved.shape[-1]), b.reshape(source, (*index.shape, 1)), 0)
    return _unlast(site, b.add(moved, b.reduce(spread, (-2,))), dim)


# -- rows -----------------------------------------------------------------------------------------------------------


def _only_index(indices: list[Value | None]) -> tuple[int, Value]:
    """The dimension indexed and the index; one tensor of integers is what the DMA engines can follow."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) != 1 or given[0][1].dtype is bool_:
        raise Refused("indexing with a mask or with several tensors; use torch.where, gather, or one index tensor")
    return given[0]


def _wrapped(site: Site, ids: Value, size: int) -> Value:
    """Negative numbers count from the end. (The minimum shows that the sum stays within the format.)"""
    b = site.b
    return b.select(b.compare(ids, "LT", 0), b.add(b.minimum(ids, 0), size), ids)


def _rows_first(site: Site, x: Value, dim: int) -> Value:
    order = [dim, *(d for d in range(len(x.shape)) if d != dim)]
    return x if dim == 0 else site.b.transpose(x, order)


@lowers("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(site, x, indices):
    dim, ids = _only_index(indices)
    return _take(site, x, dim, _wrapped(site, ids, x.shape[dim]))


@lowers("index_select.default")
def index_select(site, x, dim, ids):
    return _take(site, x, dim % len(x.shape), ids)


def _take(site: Site, x: Value, dim: int, ids: Value) -> Value:
    """x[:, ..., ids, ...] with the dimensions of ids in the place of `dim`."""
    b = site.b
    table = _rows_first(site, x, dim)
    rest = table.shape[1:]
    rows = b.reshape(b.take_rows(b.reshape(table, (table.shape[0], -1)), ids), (*ids.shape, *rest))
    n = len(ids.shape)
    order = [*range(n, n + dim), *range(n), *range(n + dim, n + len(rest))]
    return rows if dim == 0 else b.transpose(rows, order)


@lowers("index_put.default", "_unsafe_index_put.default")
def index_put(site, x, indices, values, accumulate=False):
    dim, ids = _only_index(indices)
    if not accumulate:
        raise Refused("assigning to rows by number; accumulate instead, or use torch.where")
    shape = (*x.shape[:dim], *ids.shape, *x.shape[dim + 1 :])
    return _add_rows(site, x, dim, _wrapped(site, ids, x.shape[dim]), site.b.broadcast_to(values, shape))


@lowers("index_add.default")
def index_add(site, x, dim, ids, source, alpha=1):
    source = source if alpha == 1 else site.b.multiply(source, alpha)
    return _add_rows(site, x, dim % len(x.shape), ids, source)


def _add_rows(site: Site, x: Value, dim: int, ids: Value, values: Value) -> Value:
    """x with x[:, ..., ids, ...] increased by `values`, which have the dimensions of ids in the place of `dim`."""
    b, n = site.b, len(ids.shape)
    moved = _rows_first(site, x, dim)
    order = [*range(dim, dim + n), *range(dim), *range(dim + n, len(values.shape))]
    values = values if dim == 0 else b.transpose(values, order)
    table = b.reshape(moved, (moved.shape[0], -1))
    updates = b.reshape(site.cast(values), (*ids.shape, table.shape[1]))
    summed = b.reshape(b.scatter_add_rows(ids, updates, table.shape[0], table), moved.shape)
    return summed if dim == 0 else b.transpose(summed, [*range(1, dim + 1), 0, *range(dim + 1, len(x.shape))])


@lowers("flip.default")
def flip(site, x, dims):
    """The elements along each of `dims` in reverse."""
    b = site.b
    for dim in dims_of(dims, len(x.shape)):
        size = x.shape[dim]
        x = _take(site, x, dim, b.subtract(size - 1, b.iota((size,), int32)))
    return x
