# SPDX-License-Identifier: Apache-2.0
"""Diagonals. Rows laid end to end have a diagonal at every (width + 1)-th element, so that reading one is a slice."""

from __future__ import annotations

from trnlab.frontends.torch.lowerings.registry import LoweringSite, lowers
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import int32


def _inner(site: LoweringSite, x: Value, first: int, second: int) -> Value:
    """x with the two dimensions last, in this order."""
    rank = len(x.shape)
    first, second = first % rank, second % rank
    order = [*(d for d in range(rank) if d not in (first, second)), first, second]
    return x if order == sorted(order) else site.b.transpose(x, order)


def _outer(site: LoweringSite, x: Value, first: int, second: int) -> Value:
    """x with its last two dimensions where `first` and `second` say."""
    rank = len(x.shape)
    rest = iter(range(rank - 2))
    places = {first % rank: rank - 2, second % rank: rank - 1}
    order = [places[d] if d in places else next(rest) for d in range(rank)]
    return x if order == sorted(order) else site.b.transpose(x, order)


@lowers("diagonal.default", "diagonal_copy.default")
def diagonal(site, x, offset=0, dim1=0, dim2=1):
    """Elements [..., i, i + offset], the diagonal's dimension last."""
    b, x = site.b, _inner(site, x, dim1, dim2)
    *outer, height, width = x.shape
    count = site.shape[-1]
    if count == 0:
        return b.constant(0, site.dtype, site.shape)
    start = offset if offset >= 0 else -offset * width
    line = b.reshape(x, (*outer, height * width))
    return site.shaped(b.slice_dim(line, len(outer), start, start + (count - 1) * (width + 1) + 1, width + 1))


def _placed(site: LoweringSite, x: Value, source: Value, offset: int) -> Value:
    """x [..., H, W] with its diagonal replaced by source [..., N]."""
    b, rank, count = site.b, len(x.shape), source.shape[-1]
    if count == 0:
        return x
    low, high = [0] * len(source.shape), [0] * len(source.shape)
    low[-1] = max(-offset, 0)
    high[-1] = x.shape[-2] - low[-1] - count
    rows = b.pad(source, low, high) if any(low) or any(high) else source
    spread = b.broadcast_in_dim(rows, x.shape, range(rank - 1))
    ahead = b.subtract(b.iota(x.shape[-2:], int32, 1), b.iota(x.shape[-2:], int32, 0))
    return b.select(b.broadcast_to(b.compare(ahead, "EQ", offset), x.shape), spread, x)


@lowers("diagonal_scatter.default")
def diagonal_scatter(site, x, source, offset=0, dim1=0, dim2=1):
    return _outer(site, _placed(site, _inner(site, x, dim1, dim2), site.cast(source), offset), dim1, dim2)


@lowers("diagonal_backward.default")
def diagonal_backward(site, grad, sizes, offset, dim1, dim2):
    zeros = _inner(site, site.b.constant(0, site.dtype, sizes), dim1, dim2)
    return _outer(site, _placed(site, zeros, grad, offset), dim1, dim2)
