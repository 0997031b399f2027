# SPDX-License-Identifier: Apache-2.0
"""Embedding bags: sums, averages or maxima of rows of a table, over bags of indices.

Letters: V rows of the table, C columns, M indices, B bags. Bag b holds the indices from offsets[b] up to the next.
"""

from __future__ import annotations

from typing import Any

from trnlab.frontends.torch.lowerings.index import elements, one_hot
from trnlab.frontends.torch.lowerings.registry import LoweringSite, UnsupportedOperatorForm, lowers
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32, int32

_SUM, _MEAN, _MAX = range(3)
_MOST_COMPARED = 2**26  # bags times indices times columns that a maximum compares


def _bags(site: LoweringSite, offsets: Value, count: int) -> Value:
    """The bag of each of `count` indices: how many bags begin at or before it, less one. int32 [M]"""
    b, shape = site.b, (count, offsets.shape[0])
    begun = b.compare(b.reshape(b.convert(offsets, int32), (1, shape[1])), "LE", b.iota(shape, int32, 0))
    return b.subtract(b.reduce(b.convert(begun, int32), (1,)), 1)


def _counted(site: LoweringSite, indices: Value, padding_idx: int) -> Value | None:
    """bool [M]: which indices are no padding; None for all."""
    return None if padding_idx < 0 else site.b.compare(indices, "NE", padding_idx)


def _kept(site: LoweringSite, rows: Value, counted: Value | None, weights: Value | None) -> Value:
    """Rows [M, C] times the weight of each; zeros for padding."""
    b, column = site.b, (rows.shape[0], 1)
    if weights is not None:
        rows = b.multiply(rows, b.reshape(site.wide(weights), column))
    return rows if counted is None else b.select(b.reshape(counted, column), rows, 0.0)


def _sizes(site: LoweringSite, bags: Value, counted: Value | None, count: int) -> Value:
    """Indices in each bag without padding. int32 [B]"""
    b = site.b
    inside = b.compare(b.iota((count, *bags.shape), int32, 0), "EQ", b.reshape(bags, (1, *bags.shape)))
    if counted is not None:
        inside = b.and_(inside, b.reshape(counted, (1, *bags.shape)))
    return b.reduce(b.convert(inside, int32), (1,))


def _divided(site: LoweringSite, x: Value, sizes: Value) -> Value:
    """Rows [B, C] by the sizes of the bags; an empty bag counts as one."""
    b = site.b
    return b.divide(x, b.reshape(b.convert(b.maximum(sizes, 1), float32), (sizes.shape[0], 1)))


def _largest(site: LoweringSite, rows: Value, indices: Value, bags: Value, counted: Value | None, count: int) -> Any:
    """The maxima [B, C], 0 for an empty bag, and the indices of the first rows that hold them, -1 for none."""
    b, shape = site.b, (count, *rows.shape)
    if rows.type.size * count > _MOST_COMPARED:
        raise UnsupportedOperatorForm(
            f"maxima over {rows.shape[0]} indices in {count} bags", 'use mode="sum" or "mean"'
        )
    inside = b.compare(b.iota(shape, int32, 0), "EQ", b.reshape(bags, (1, rows.shape[0], 1)))
    if counted is not None:
        inside = b.and_(inside, b.reshape(counted, (1, rows.shape[0], 1)))
    spread = b.broadcast_to(b.reshape(rows, (1, *rows.shape)), shape)
    best = b.reduce(b.select(inside, spread, float("-inf")), (1,), "maximum", keepdims=True)
    there = b.and_(inside, b.or_(b.compare(spread, "EQ", best), b.compare(spread, "NE", spread)))
    place = b.reduce(b.select(there, b.iota(shape, int32, 1), rows.shape[0]), (1,), "minimum")
    found = b.compare(place, "LT", rows.shape[0])
    ids = elements(site, b.convert(indices, int32), b.minimum(place, rows.shape[0] - 1))
    return b.select(found, b.reshape(best, place.shape), 0.0), b.select(found, ids, -1)


@lowers("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(
    site,
    table,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=_SUM,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    """The bags [B, C]; of what the gradient needs: the bag of each index, the sizes of bags, and rows of maxima."""
    b, count = site.b, site.shape[0]
    if indices.type.size == 0 or site.type.size == 0:
        return tuple(b.constant(0, t.dtype, t.shape) for t in site.types)
    site.watch.index(indices, 0, table.shape[0])
    offsets = b.slice_dim(offsets, 0, 0, count)
    bags, counted = _bags(site, offsets, indices.shape[0]), _counted(site, indices, padding_idx)
    sizes = _sizes(site, bags, counted, count)
    rows, places = site.wide(b.take_rows(table, indices)), b.constant(0, int32, site.types[3].shape)
    if mode == _MAX:
        out, places = _largest(site, rows, indices, bags, counted, count)
    else:
        out = b.scatter_add_rows(bags, _kept(site, rows, counted, per_sample_weights), count)
        out = _divided(site, out, sizes) if mode == _MEAN else out
    sizes = b.pad(sizes, (0,), (site.types[2].shape[0] - count,))
    results = (site.cast(out), bags, sizes, places)
    return tuple(v if t is None else b.convert(v, t.dtype) for v, t in zip(results, site.types))


@lowers("_embedding_bag_backward.default")
def embedding_bag_backward(
    site,
    grad,
    indices,
    offsets,
    bags,
    sizes,
    places,
    rows,
    scale_grad_by_freq,
    mode,
    sparse,
    per_sample_weights,
    padding_idx=-1,
):
    if sparse:
        raise UnsupportedOperatorForm("a sparse gradient has no form on the chip", "leave sparse off")
    return embedding_bag_dense_backward(
        site, grad, indices, bags, sizes, places, rows, scale_grad_by_freq, mode, per_sample_weights, padding_idx
    )


@lowers("_embedding_bag_dense_backward.default")
def embedding_bag_dense_backward(
    site, grad, indices, bags, sizes, places, rows, scale_grad_by_freq, mode, per_sample_weights, padding_idx=-1
):
    """Gradient of the table [V, C]: each row the sum over the bags that it is in, or that it is the maximum of."""
    if scale_grad_by_freq:
        raise UnsupportedOperatorForm(
            "gradients scaled by how often a row was read have no lowering", "leave scale_grad_by_freq off"
        )
    b, grad = site.b, site.wide(grad)
    if indices.type.size == 0 or grad.type.size == 0:
        return b.constant(0, site.dtype, site.shape)
    if mode == _MAX:
        if grad.type.size * rows > _MOST_COMPARED:
            raise UnsupportedOperatorForm(f"maxima of bags over a table of {rows} rows", 'use mode="sum" or "mean"')
        mine = b.select(one_hot(site, places, rows), b.reshape(grad, (*grad.shape, 1)), 0.0)
        return site.cast(b.transpose(b.reduce(mine, (0,)), (1, 0)))
    if mode == _MEAN:
        grad = _divided(site, grad, b.slice_dim(sizes, 0, 0, grad.shape[0]))
    shares = b.take_rows(grad, bags)
    shares = _kept(site, shares, _counted(site, indices, padding_idx), per_sample_weights)
    return site.cast(b.scatter_add_rows(indices, shares, rows))


@lowers("_embedding_bag_per_sample_weights_backward.default")
def embedding_bag_weights_backward(site, grad, table, indices, offsets, bags, mode, padding_idx=-1):
    """The gradient of each index's weight: its row times the gradient of its bag."""
    b = site.b
    product = b.multiply(site.wide(b.take_rows(grad, bags)), site.wide(b.take_rows(table, indices)))
    return site.cast(b.reduce(_kept(site, product, _counted(site, indices, padding_idx), None), (1,)))
