# SPDX-License-Identifier: Apache-2.0
"""What comparing every element with every other says besides an order: medians, places in a list.

NaN is the largest of all and the median of what holds one, as on the CPU.
"""

from __future__ import annotations

from typing import Any

from trnlab.frontends.torch.lowerings.index import gathered
from trnlab.frontends.torch.lowerings.registry import LoweringSite, UnsupportedOperatorForm, lowers
from trnlab.frontends.torch.lowerings.sorting import (
    MOST_COMPARED,
    is_nan,
    moved_last,
    rank_of,
    the_one,
)
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import int32


def _compared(site: LoweringSite, pairs: int, what: str) -> None:
    if pairs > MOST_COMPARED:
        raise UnsupportedOperatorForm(
            f"{what} compares {pairs:,} pairs of elements", "take fewer, or compute it before the step"
        )


def _nothing(site: LoweringSite) -> Any:
    """Results without elements."""
    return tuple(site.b.constant(0, t.dtype, t.shape) for t in site.types if t is not None)


def _median(site: LoweringSite, x: Value, passes_nan: bool) -> tuple[Value, Value]:
    """The lower median of x [..., N] and where it is. passes_nan: NaN, of what holds one; else NaN does not count."""
    b, size = site.b, x.shape[-1]
    _compared(site, x.type.size * size, "a median")
    ranks, nan = rank_of(site, x, False), is_nan(site, x)
    column = b.iota(x.shape, int32, len(x.shape) - 1)
    middle: Value | int = (size - 1) // 2
    if nan is not None:
        some = b.reduce(b.convert(nan, int32), (-1,), keepdims=True)
        good = b.subtract(size, some)
        if passes_nan:  # NaN comes last: the first of them where there are some
            found = b.select(b.compare(some, "GT", 0), good, (size - 1) // 2)
        else:  # a half of nothing but NaN is the first
            found = b.convert(
                b.floor(b.multiply(b.convert(b.maximum(b.subtract(good, 1), 0), "float32"), 0.5)), int32
            )
        middle = b.broadcast_to(found, x.shape)
    here = b.compare(ranks, "EQ", middle)
    return the_one(site, here, x), b.reduce(b.select(here, column, 0), (-1,))


def _median_of(site: LoweringSite, x: Value, dim: int, passes_nan: bool) -> Any:
    moved = moved_last(site, x, dim)
    if moved.type.size == 0:
        return _nothing(site)
    found = _median(site, moved, passes_nan)
    kinds = [t for t in site.types if t is not None]
    return tuple(site.b.convert(site.b.reshape(v, t.shape), t.dtype) for v, t in zip(found, kinds))


@lowers("median.dim")
def median_dim(site, x, dim, keepdim=False):
    return _median_of(site, x, dim, True)


@lowers("nanmedian.dim")
def nanmedian_dim(site, x, dim, keepdim=False):
    return _median_of(site, x, dim, False)


@lowers("median.default")
def median(site, x):
    return _median_of_all(site, x, True)


@lowers("nanmedian.default")
def nanmedian(site, x):
    return _median_of_all(site, x, False)


def _median_of_all(site: LoweringSite, x: Value, passes_nan: bool) -> Value:
    if x.type.size == 0:
        raise UnsupportedOperatorForm("nothing has no median")
    line = moved_last(site, site.b.reshape(x, (x.type.size,)), 0)
    return site.shaped(site.cast(_median(site, line, passes_nan)[0]))


def _searched(site: LoweringSite, bounds: Value, x: Value, right: bool) -> Value:
    """How many of the ascending bounds [..., N] come before each x [..., M], or are equal to it where `right`."""
    b, count = site.b, bounds.shape[-1]
    if x.type.size * count == 0:
        return b.constant(0, site.dtype, site.shape)
    _compared(site, x.type.size * count, "a search")
    shape = (*x.shape, count)
    lead = bounds.shape[:-1] or (1,) * (len(x.shape) - 1)
    edges = b.broadcast_to(b.reshape(bounds, (*lead, *(() if not x.shape else (1,)), count)), shape)
    values = b.broadcast_to(b.reshape(x, (*x.shape, 1)), shape)
    stays = b.compare(edges, "GT" if right else "GE", values)  # false of a value that is NaN, which comes last
    return site.shaped(site.cast(b.reduce(b.convert(b.not_(stays), int32), (-1,))))


@lowers("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(site, bounds, x, out_int32=False, right=False, side=None, sorter=None):
    if sorter is not None:
        bounds = gathered(site, bounds, len(bounds.shape) - 1, sorter)
    x = x if isinstance(x, Value) else site.b.constant(x, bounds.dtype, site.shape)
    return _searched(site, *_alike(site, bounds, x), right or side == "right")


@lowers("bucketize.Tensor", "bucketize.Scalar")
def bucketize(site, x, bounds, out_int32=False, right=False):
    x = x if isinstance(x, Value) else site.b.constant(x, bounds.dtype, site.shape)
    return _searched(site, *_alike(site, bounds, x), right)


def _alike(site: LoweringSite, bounds: Value, x: Value) -> tuple[Value, Value]:
    """Both in one format: that of the floats, if one of them has any."""
    if bounds.dtype is x.dtype:
        return bounds, x
    if bounds.dtype.is_float or x.dtype.is_float:
        return site.wide(bounds), site.wide(x)
    return site.b.convert(bounds, int32), site.b.convert(x, int32)
