# SPDX-License-Identifier: Apache-2.0
"""Rows by number, and elements by number within rows.

Rows go through the DMA engines' indirect addressing (gather and scatter of rows); several index tensors together make
one row number, and single elements are rows of one. Within a row elements are picked by comparing a counter with the
index: a mask, then a select and a reduction. Assignments look for the last update of each place and gather it: every
format is exact, and repeated indices mean what they mean on the CPU.

Every index is checked (`OverflowFlags.index`): before the program runs where it is an input, by a flag where it is
computed.

Letters: V rows of a table or classes, C columns, J indices per row, M updates.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from trnlab.frontends.torch.lowerings.index_rows import row_ids, rows_of
from trnlab.frontends.torch.lowerings.registry import (
    Lowering,
    LoweringSite,
    UnsupportedOperatorForm,
    dim_of,
    dims_of,
    lowers,
)
from trnlab.frontends.torch.lowerings.shape import padded
from trnlab.frontends.torch.steps_in_memory import added
from trnlab.graph.ir import Value
from trnlab.graph.passes.rewrite import is_zero
from trnlab.numerics.dtypes import bool_, float32, int32

_FEW_SUMMED = 8  # what a row adds up, below which whatever computes it compares and adds as well
_MOST_COMPARED = 2**26  # places times updates that an assignment compares


def one_hot(site: LoweringSite, ids: Value, classes: int, dim: int | None = None) -> Value:
    """bool [..., classes]: true where the last index equals ids [...]; an id outside matches nothing.

    dim: where among the dimensions of `ids` that of classes is put, behind all of them without.
    """
    dim = len(ids.shape) if dim is None else dim
    b, shape = site.b, (*ids.shape[:dim], classes, *ids.shape[dim:])
    column = b.reshape(b.convert(ids, int32), (*ids.shape[:dim], 1, *ids.shape[dim:]))
    return b.compare(b.iota(shape, int32, dim), "EQ", column)


def _counts(ids: Value) -> bool:
    """Whether ids are known to be 0, 1, 2, ..., as positions in a sequence are."""
    source = ids.op
    while source is not None and source.name == "reshape" and all(n == 1 for n in ids.shape[:-1]):
        source = source.operands[0].op
    return source is not None and source.name == "iota" and len(source.result.shape) == 1


@lowers("embedding.default")
def embedding(site, table, ids, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    site.watch.index(ids, 0, table.shape[0])
    if _counts(ids) and ids.type.size <= table.shape[0]:
        return site.shaped(site.b.slice_dim(table, 0, 0, ids.type.size))
    return site.b.take_rows(table, ids)


@lowers("embedding_dense_backward.default")
def embedding_backward(site, grad, ids, rows, padding_idx, scale_grad_by_freq):
    """Gradient of the table [V, C]: each row the sum over the places that read it."""
    b, grad = site.b, site.wide(grad)
    if _counts(ids) and padding_idx < 0:
        count = ids.type.size
        return site.cast(b.pad(b.reshape(grad, (count, grad.shape[-1])), (0, 0), (rows - count, 0)))
    if padding_idx >= 0:
        grad = b.select(b.reshape(b.compare(ids, "NE", padding_idx), (*ids.shape, 1)), grad, 0.0)
    if not ids.shape:
        ids, grad = b.reshape(ids, (1,)), b.reshape(grad, (1, grad.shape[-1]))
    total = b.scatter_add_rows(ids, grad, rows)
    if scale_grad_by_freq:
        flat = b.reshape(ids, (ids.type.size,))
        times = b.reduce(b.convert(one_hot(site, flat, rows), float32), (0,), keepdims=True)
        total = b.divide(total, b.reshape(b.maximum(times, 1.0), (rows, 1)))
    return site.cast(total)


# -- elements along a dimension -------------------------------------------------------------------------------------


def _at_least_one(site: LoweringSite, *xs: Any) -> list[Any]:
    """Tensors without dimensions as ones of a single element."""
    return [site.b.reshape(x, (1,)) if isinstance(x, Value) and not x.shape else x for x in xs]


def _last(site: LoweringSite, x: Value, dim: int) -> Value:
    """x with dimension `dim` moved to the end."""
    order = [d for d in range(len(x.shape)) if d != dim] + [dim]
    return x if order == sorted(order) else site.b.transpose(x, order)


def _unlast(site: LoweringSite, x: Value, dim: int) -> Value:
    order = list(range(len(x.shape) - 1))
    order.insert(dim, len(x.shape) - 1)
    return x if order == sorted(order) else site.b.transpose(x, order)


def _cropped(site: LoweringSite, x: Value, lead: tuple[int, ...]) -> Value:
    """x with its leading dimensions cut to `lead`, as PyTorch does when the index is the smaller."""
    if x.shape[:-1] == lead:
        return x
    return site.b.slice(x, [0] * len(x.shape), [*lead, x.shape[-1]])


def _grown(site: LoweringSite, x: Value, lead: tuple[int, ...], value: Any) -> Value:
    """x with `value` behind it in its leading dimensions, up to `lead`."""
    return padded(site, x, [0] * len(x.shape), [n - m for n, m in zip((*lead, x.shape[-1]), x.shape)], value)


def _bools(site: LoweringSite, x: Value) -> Value:
    """Selected sums need numbers."""
    return site.b.convert(x, int32) if x.dtype is bool_ else x


@lowers("gather.default")
def gather(site, x, dim, index, sparse_grad=False):
    return site.shaped(site.cast(gathered(site, x, dim, index)))


def gathered(site: LoweringSite, x: Value, dim: int, index: Value) -> Value:
    """x's elements at the places along `dim` that `index` names, in its shape; those of bools as numbers."""
    b = site.b
    if index.type.size == 0:
        return b.constant(0, x.dtype, index.shape)
    x, index = _at_least_one(site, x, index)
    dim = dim_of(dim, len(x.shape))
    site.watch.index(index, 0, x.shape[dim])
    ids = row_ids(site, index, dim, x.shape[dim])
    if ids is not None:
        return b.reshape(b.take_rows(rows_of(site, _bools(site, x), index.shape, dim), ids), index.shape)
    index = _last(site, index, dim)  # [..., J]
    x = _cropped(site, _last(site, _bools(site, x), dim), index.shape[:-1])
    rows = (1, *index.shape)  # one row at least
    taken = b.take_along(b.reshape(x, (1, *x.shape)), b.reshape(index, rows))
    return _unlast(site, b.reshape(taken, index.shape), dim)


class _Scattered:
    """The target with dimension `dim` last, the mask of which index [..., J] hits which place [..., J, V], and the
    source in the shape of the index."""

    def __init__(self, site: LoweringSite, x: Value, dim: int, index: Value, source: Any) -> None:
        b = site.b
        x, index, source = _at_least_one(site, x, index, source)
        self.site, self.dim = site, dim_of(dim, len(x.shape))
        site.watch.index(index, 0, x.shape[self.dim])
        self.target, index = _last(site, x, self.dim), _last(site, index, self.dim)
        self.lead, self.count = self.target.shape[:-1], index.shape[-1]
        self.mask = one_hot(site, index, self.target.shape[-1])
        if isinstance(source, Value):
            source = b.slice(_last(site, source, self.dim), [0] * len(index.shape), index.shape)
        self.source = source

    def reduced(self, kind: str, start: Any) -> Value:
        """All of the source that goes to each place, combined; `start` where there is none. [..., V]"""
        b = self.site.b
        column = self.source
        if isinstance(column, Value):
            column = b.reshape(column, (*column.shape, 1))
        spread = b.select(self.mask, column, start)
        return _grown(self.site, b.reduce(spread, (-2,), kind), self.lead, start)

    def winner(self) -> Value:
        """The last index that hits each place, -1 where none does. int32 [..., V]"""
        b = self.site.b
        places = b.select(self.mask, b.iota(self.mask.shape, int32, len(self.mask.shape) - 2), -1)
        return _grown(self.site, b.reduce(places, (-2,), "maximum"), self.lead, -1)

    def done(self, result: Value) -> Value:
        """The result with its dimensions in PyTorch's order."""
        return self.site.shaped(_unlast(self.site, result, self.dim))


def _where_there_are_indices(lowering: Lowering) -> Lowering:
    """Guard an operator that scatters: without indices it changes nothing."""

    def scatter(site: LoweringSite, x: Value, dim: int, index: Value, *rest: Any, **options: Any) -> Any:
        return lowering(site, x, dim, index, *rest, **options) if index.type.size else x

    return scatter


@lowers("scatter.value")
@_where_there_are_indices
def scatter_value(site, x, dim, index, value):
    to = _Scattered(site, x, dim, index, value)
    return to.done(site.b.select(site.b.compare(to.winner(), "GE", 0), value, to.target))


@lowers("scatter.src")
@_where_there_are_indices
def scatter_src(site, x, dim, index, source):
    b, to = site.b, _Scattered(site, x, dim, index, source)
    winner = to.winner()
    if to.count == 1:
        value = _grown(site, b.broadcast_to(to.source, (*to.source.shape[:-1], winner.shape[-1])), to.lead, 0)
    else:
        source = _grown(site, to.source, to.lead, 0)
        rows = b.reshape(b.iota((prod(to.lead), 1), int32), (*to.lead, 1))
        value = elements(site, source, b.add(b.multiply(rows, to.count), b.maximum(winner, 0)))
    return to.done(b.select(b.compare(winner, "GE", 0), value, to.target))


@lowers("scatter_add.default")
@_where_there_are_indices
def scatter_add(site, x, dim, index, source):
    b = site.b
    sums = _float_sums(site, x, dim_of(dim, len(x.shape)), index, source) if x.shape and x.dtype.is_float else None
    if sums is not None:
        sums = padded(site, sums, [0] * len(x.shape), [n - m for n, m in zip(x.shape, sums.shape)], 0)
        return site.cast(sums if is_zero(x) else b.add(site.wide(x), sums))
    to = _Scattered(site, x, dim, index, source)
    if site.dtype is bool_:
        sums = _Scattered(site, x, dim, index, site.b.convert(source, int32)).reduced("maximum", 0)
        return to.done(b.or_(to.target, b.compare(sums, "NE", 0)))
    return to.done(b.add(to.target, to.reduced("add", 0)))


def _float_sums(site: LoweringSite, x: Value, dim: int, index: Value, source: Value) -> Value | None:
    """Sums of the source by index, in float32, as far as the index reaches in other dimensions: of whole rows, or
    within rows where there are many; None where few go to each."""
    b, count = site.b, x.shape[dim]
    ids = row_ids(site, index, dim, count)
    if ids is None and index.shape[dim] < _FEW_SUMMED:
        return None
    site.watch.index(index, 0, count)
    source = b.slice(source, [0] * len(index.shape), index.shape)
    if ids is None:
        source, index = (_last(site, v, dim) for v in (source, index))
        dtype = site.dtype if is_zero(x) else float32
        return _unlast(site, b.sum_along(source, b.convert(index, int32), count, dtype), dim)
    shape = (*index.shape[:dim], count, *index.shape[dim + 1 :])
    rows = rows_of(site, site.wide(source), index.shape, dim)
    return b.reshape(b.scatter_add_rows(ids, rows, prod(shape[: dim + 1])), shape)


@lowers("scatter.reduce", "scatter.value_reduce")
def scatter_reduced(site, x, dim, index, source, reduce):
    return scatter_reduce(site, x, dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])


@lowers("scatter_reduce.two")
def scatter_reduce(site, x, dim, index, source, reduce, include_self=True):
    """Each place combined with all of the source that goes there; without itself where something does, if asked."""
    b = site.b
    kind, start = _REDUCTIONS[reduce](x)
    to = _Scattered(site, _bools(site, x), dim, index, _bools(site, source) if isinstance(source, Value) else source)
    if to.mask.type.size == 0 or x.type.size == 0:
        return x
    hits = b.compare(to.winner(), "GE", 0)
    own = to.target if include_self else b.select(hits, start, to.target)
    combined = b.binary(kind, own, to.reduced(kind, start))
    if reduce == "mean":
        combined = _averaged(site, to, combined, include_self)
    return site.cast(to.done(b.select(hits, combined, to.target)))


def _averaged(site: LoweringSite, to: _Scattered, sums: Value, include_self: bool) -> Value:
    """Sums by how many there are of each; integers round down, as PyTorch's do."""
    b = site.b
    counts = b.reduce(b.convert(to.mask, int32), (-2,), "add")
    counts = b.add(_grown(site, counts, to.lead, 0), 1 if include_self else 0)
    if sums.dtype.is_float:
        return site.cast(b.divide(b.convert(sums, float32), b.convert(b.maximum(counts, 1), float32)))
    raise UnsupportedOperatorForm("means of integers have no lowering", "convert to float32 first")


def _largest(x: Value) -> Any:
    return float("inf") if x.dtype.is_float else 1 if x.dtype is bool_ else int(np.iinfo(x.dtype.numpy).max)


def _smallest(x: Value) -> Any:
    return float("-inf") if x.dtype.is_float else 0 if x.dtype is bool_ else int(np.iinfo(x.dtype.numpy).min)


_REDUCTIONS: dict[str, Any] = {
    "sum": lambda x: ("add", 0),
    "mean": lambda x: ("add", 0),
    "prod": lambda x: ("multiply", 1),
    "amax": lambda x: ("maximum", _smallest(x)),
    "amin": lambda x: ("minimum", _largest(x)),
}


# -- elements anywhere ----------------------------------------------------------------------------------------------


def elements(site: LoweringSite, x: Value, ids: Value) -> Value:
    """Elements of x by their row-major numbers, in the shape of `ids`."""
    if not ids.type.size:
        return site.b.constant(0, x.dtype, ids.shape)
    return site.b.reshape(site.b.take_rows(site.b.reshape(x, (x.type.size, 1)), ids), ids.shape)


def _constant_ids(site: LoweringSite, ids: np.ndarray[Any, Any]) -> Value:
    return site.b.constant(ids.astype(np.int32), int32, ids.shape)


@lowers("masked_scatter.default")
def masked_scatter(site, x, mask, source):
    """Where the mask holds, the next element of the source: the number of those before says which."""
    b = site.b
    mask, x = b.broadcast_to(mask, site.shape), b.broadcast_to(x, site.shape)
    count = mask.type.size
    if count > 2**13:
        raise UnsupportedOperatorForm(
            "a masked scatter of more than 8192 places", "use torch.where with a source of the same shape"
        )
    line = b.convert(b.reshape(mask, (1, count)), int32)
    before = b.compare(b.iota((count, count), int32, 1), "LT", b.iota((count, count), int32, 0))
    number = b.reshape(b.reduce(b.select(before, line, 0), (1,)), site.shape)
    number = b.minimum(number, max(source.type.size - 1, 0))
    return b.select(mask, elements(site, source, number), x)


# -- rows -----------------------------------------------------------------------------------------------------------


def _wrapped(site: LoweringSite, ids: Value, size: int) -> Value:
    """Negative numbers count from the end. (The minimum shows that the sum stays within the format.)"""
    b = site.b
    ids = b.convert(ids, int32)
    if ids.type.size and site.watch.bounds(ids).low >= 0:
        return ids
    return b.select(b.compare(ids, "LT", 0), b.add(b.minimum(ids, 0), size), ids)


class _Indexed:
    """x indexed by tensors in some of its dimensions: those lie in front, as one dimension of rows.

    ids: the row numbers, in the broadcast shape of the index tensors. dims: the dimensions indexed.
    """

    def __init__(self, site: LoweringSite, x: Value, indices: list[Value | None]) -> None:
        b = site.b
        self.site, self.x = site, x
        self.dims = [d for d, i in enumerate(indices) if i is not None]
        given = [i for i in indices if i is not None]
        if any(i.dtype is bool_ for i in given):
            raise UnsupportedOperatorForm(
                "indexing with a mask makes a tensor whose size depends on values",
                "use torch.where or masked_fill, or multiply by the mask",
            )
        shape = np.broadcast_shapes(*(i.shape for i in given))
        number: Any = None
        for dim, ids in zip(self.dims, given):
            site.watch.index(ids, -x.shape[dim], x.shape[dim])
            ids = b.broadcast_to(_wrapped(site, ids, x.shape[dim]), shape)
            number = ids if number is None else b.add(b.multiply(number, x.shape[dim]), ids)
        self.ids: Value = number
        self.order = [*self.dims, *(d for d in range(len(x.shape)) if d not in self.dims)]
        moved = x if self.order == sorted(self.order) else b.transpose(x, self.order)
        self.rest = moved.shape[len(self.dims) :]
        self.table = b.reshape(moved, (prod(moved.shape[: len(self.dims)]), prod(self.rest)))

    @property
    def place(self) -> int:
        """Where the dimensions of the ids lie in a result: where the indexed ones were; in front if apart."""
        together = self.dims == list(range(self.dims[0], self.dims[-1] + 1))
        return self.dims[0] if together else 0

    def taken(self) -> Value:
        """The rows, with dimensions in PyTorch's order."""
        b, n = self.site.b, len(self.ids.shape)
        rows = b.reshape(b.take_rows(self.table, self.ids), (*self.ids.shape, *self.rest))
        order = [*range(n, n + self.place), *range(n), *range(n + self.place, n + len(self.rest))]
        return rows if order == sorted(order) else b.transpose(rows, order)

    def updates(self, values: Value) -> Value:
        """Values that broadcast to a result, as one row per id. [M, C]"""
        b, n = self.site.b, len(self.ids.shape)
        shape = (*self.rest[: self.place], *self.ids.shape, *self.rest[self.place :])
        values = b.broadcast_to(values, shape)
        order = [*range(self.place, self.place + n), *range(self.place), *range(self.place + n, len(shape))]
        values = values if order == sorted(order) else b.transpose(values, order)
        return b.reshape(values, (self.ids.type.size, self.table.shape[1]))

    def back(self, table: Value) -> Value:
        """A changed table in the shape of x."""
        b = self.site.b
        moved = b.reshape(table, tuple(self.x.shape[d] for d in self.order))
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return moved if inverse == sorted(inverse) else b.transpose(moved, inverse)


def _added(site: LoweringSite, table: Value, ids: Value, updates: Value) -> Value:
    """table [V, C] with row ids[i] increased by updates[i]."""
    if table.dtype is bool_:
        raise UnsupportedOperatorForm("adding bools by index", "convert to integers first")
    places = _places(site, ids, table.shape[0]) if is_zero(table) and table.dtype.is_float else None
    if places is not None:
        return site.b.add(site.b.take_rows(site.cast(updates), places), 0.0)  # which makes plus zero of minus zero
    return site.b.scatter_add_rows(ids, site.cast(updates), table.shape[0], table)


def _places(site: LoweringSite, ids: Value, rows: int) -> Value | None:
    """Where each row's number is among ids, if those are known to be all of them, in some order; else None."""
    return site.watch.inverse(ids) if ids.type.size == rows else None


def _assigned(site: LoweringSite, table: Value, ids: Value, updates: Value) -> Value:
    """table [V, C] with row ids[i] replaced by updates[i], by the last one where several go to one row."""
    b, rows, count = site.b, table.shape[0], ids.type.size
    places = _places(site, ids, rows)
    if places is not None:
        counted = _counts(b.reshape(updates, (count,))) if updates.type.size == count else False
        return b.reshape(places, (count, 1)) if counted else b.take_rows(site.cast(updates), places)
    if rows * count > _MOST_COMPARED:
        raise UnsupportedOperatorForm(
            f"assigning {count} rows by number among {rows}", "accumulate (index_add), or use torch.where with a mask"
        )
    if count == 0 or table.type.size == 0:
        return table
    hit = b.compare(b.iota((rows, count), int32, 0), "EQ", b.reshape(ids, (1, count)))
    winner = b.reduce(b.select(hit, b.iota((rows, count), int32, 1), -1), (1,), "maximum")
    taken = b.take_rows(site.cast(updates), b.maximum(winner, 0))
    return b.select(b.reshape(b.compare(winner, "GE", 0), (rows, 1)), taken, table)


@lowers("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(site, x, indices):
    return _Indexed(site, x, indices).taken()


@lowers("index_select.default")
def index_select(site, x, dim, ids):
    if site.type.size == 0:
        return site.b.constant(0, site.dtype, site.shape)
    x, ids = _at_least_one(site, x, ids)
    dim = dim_of(dim, len(x.shape))
    site.watch.index(ids, 0, x.shape[dim])
    return site.shaped(_Indexed(site, x, [None] * dim + [ids]).taken())


def _take(site: LoweringSite, x: Value, dim: int, ids: Value) -> Value:
    """x[:, ..., ids, ...] with the dimensions of ids in the place of `dim`."""
    return _Indexed(site, x, [None] * dim + [ids]).taken()


def _where_masked(site: LoweringSite, x: Value, mask: Value, values: Value) -> Value:
    """x[mask] = one value for all places."""
    rank = len(mask.shape)
    if len(values.shape) > len(x.shape) - rank:
        if values.shape[0] != 1:
            raise UnsupportedOperatorForm(
                "assigning one value per place of a mask", "use torch.where, or masked_scatter"
            )
        values = site.b.reshape(values, values.shape[1:])
    mask = site.b.reshape(mask, (*mask.shape, *[1] * (len(x.shape) - rank)))
    return site.b.select(site.b.broadcast_to(mask, x.shape), site.b.broadcast_to(site.cast(values), x.shape), x)


@lowers("index_put.default", "_unsafe_index_put.default")
def index_put(site, x, indices, values, accumulate=False):
    mask = indices[0] if len([i for i in indices if i is not None]) == 1 else None
    if not accumulate and mask is not None and mask.dtype is bool_:
        return _where_masked(site, x, mask, values)
    to = _Indexed(site, x, indices)
    if to.ids.type.size == 0 or x.type.size == 0:
        return x
    ids, updates = site.b.reshape(to.ids, (to.ids.type.size,)), to.updates(site.cast(values))
    return to.back((_added if accumulate else _assigned)(site, to.table, ids, updates))


@lowers("index_add.default")
def index_add(site, x, dim, ids, source, alpha=1):
    b = site.b
    x, ids, source = _at_least_one(site, x, ids, source)
    dim = dim_of(dim, len(x.shape))
    if ids.type.size == 0 or x.type.size == 0:
        return site.shaped(x)
    source = source if alpha == 1 else b.multiply(source, alpha)
    slices = added(site.b, site.wide(x), ids, site.wide(source)) if x.dtype.is_float else None
    if slices is not None:
        return site.shaped(site.cast(slices))
    site.watch.index(ids, 0, x.shape[dim])
    to = _Indexed(site, x, [None] * dim + [ids])
    return site.shaped(to.back(_added(site, to.table, ids, to.updates(site.cast(source)))))


@lowers("flip.default")
def flip(site, x, dims):
    """The elements along each of `dims` in reverse."""
    b = site.b
    for dim in dims_of(dims, len(x.shape)) if list(dims) else ():
        size = x.shape[dim]
        if size > 1:
            x = _take(site, x, dim, b.subtract(size - 1, b.iota((size,), int32)))
    return x
