# SPDX-License-Identifier: Apache-2.0
"""Sums, means, extremes. Sums of 16-bit tensors are made in fp32 and rounded once."""

from __future__ import annotations

from math import prod
from typing import Any

from trnlab.frontends.torch.lowerings.elementwise import truth
from trnlab.frontends.torch.lowerings.registry import LoweringSite, dim_of, dims_of, lowers
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import bool_, int32

_OF_TRUTH = {"maximum": "or", "minimum": "and"}


def total(site: LoweringSite, x: Value, dims: tuple[int, ...], kind: str = "add") -> Value:
    """x reduced over `dims`, in the result's shape (of the same format)."""
    kind = _OF_TRUTH.get(kind, kind) if x.dtype is bool_ else kind
    return site.shaped(site.b.reduce(x, dims, kind) if dims else x)


@lowers("sum.default", "sum.dim_IntList")
def sum_(site, x, dim=None, keepdim=False, dtype=None):
    x = site.wide(x) if site.dtype.is_float else site.cast(x)
    return site.cast(total(site, x, dims_of(dim, len(x.shape))))


@lowers("mean.default", "mean.dim")
def mean(site, x, dim=None, keepdim=False, dtype=None):
    dims = dims_of(dim, len(x.shape))
    count = prod(x.shape[d] for d in dims)
    return site.cast(site.b.divide(total(site, site.wide(x), dims), float(count)))


@lowers("prod.default", "prod.dim_int")
def prod_(site, x, dim=None, keepdim=False, dtype=None):
    return site.cast(total(site, site.working(x), dims_of(dim, len(x.shape)), "multiply"))


def _deviation(site: LoweringSite, x: Value, dim: Any, correction: Any) -> tuple[Value, Value, tuple[int, ...]]:
    """Variance and mean of x in fp32 with the reduced dimensions kept as one, and these dimensions."""
    b, x, dims = site.b, site.wide(x), dims_of(dim, len(x.shape))
    count = prod(x.shape[d] for d in dims)
    average = b.divide(b.reduce(x, dims, keepdims=True), float(count))
    centred = b.subtract(x, average)
    squares = b.reduce(b.multiply(centred, centred), dims, keepdims=True)
    left = max(count - (1 if correction is None else correction), 0)  # 0 / 0 of one element is NaN, as in PyTorch
    return b.divide(squares, float(left)), average, dims


@lowers("var.correction")
def var(site, x, dim=None, correction=None, keepdim=False):
    return site.cast(site.shaped(_deviation(site, x, dim, correction)[0]))


@lowers("var_mean.correction")
def var_mean(site, x, dim=None, correction=None, keepdim=False):
    variance, average, _ = _deviation(site, x, dim, correction)
    return tuple(site.cast(site.shaped(v)) for v in (variance, average))


@lowers("amax.default")
def amax(site, x, dim=(), keepdim=False):
    return total(site, x, dims_of(list(dim), len(x.shape)), "maximum")


@lowers("amin.default")
def amin(site, x, dim=(), keepdim=False):
    return total(site, x, dims_of(list(dim), len(x.shape)), "minimum")


@lowers("max.default")
def max_(site, x):
    return total(site, x, dims_of(None, len(x.shape)), "maximum")


@lowers("min.default")
def min_(site, x):
    return total(site, x, dims_of(None, len(x.shape)), "minimum")


@lowers("any.default", "any.dim", "any.dims")
def any_(site, x, dim=None, keepdim=False):
    return site.cast(total(site, truth(site, x), dims_of(dim, len(x.shape)), "or"))


@lowers("all.default", "all.dim", "all.dims")
def all_(site, x, dim=None, keepdim=False):
    return site.cast(total(site, truth(site, x), dims_of(dim, len(x.shape)), "and"))


def _first_place(site: LoweringSite, x: Value, dim: int, kind: str) -> tuple[Value, Value]:
    """The extreme along `dim` and the first index that holds it, the dimension kept as one. NaN is the extreme."""
    b = site.b
    best = b.reduce(x, (dim,), _OF_TRUTH.get(kind, kind) if x.dtype is bool_ else kind, keepdims=True)
    there = b.compare(x, "EQ", best)
    if x.dtype.is_float:
        there = b.or_(there, b.compare(x, "NE", x))
    places = b.iota(x.shape, int32, dim)
    index = b.reduce(b.select(there, places, x.shape[dim]), (dim,), "minimum", keepdims=True)
    return best, index


@lowers("argmax.default")
def argmax(site, x, dim=None, keepdim=False):
    return _place(site, x, dim, "maximum")


@lowers("argmin.default")
def argmin(site, x, dim=None, keepdim=False):
    return _place(site, x, dim, "minimum")


def _place(site: LoweringSite, x: Value, dim: int | None, kind: str) -> Value:
    if dim is None or not x.shape:
        x, dim = site.b.reshape(x, (x.type.size,)), 0
    return site.shaped(_first_place(site, x, dim_of(dim, len(x.shape)), kind)[1])


@lowers("max.dim")
def max_dim(site, x, dim, keepdim=False):
    x = x if x.shape else site.b.reshape(x, (1,))
    return tuple(site.shaped(v) for v in _first_place(site, x, dim_of(dim, len(x.shape)), "maximum"))


@lowers("min.dim")
def min_dim(site, x, dim, keepdim=False):
    x = x if x.shape else site.b.reshape(x, (1,))
    return tuple(site.shaped(v) for v in _first_place(site, x, dim_of(dim, len(x.shape)), "minimum"))


@lowers("linalg_vector_norm.default")
def vector_norm(site, x, order=2, dim=None, keepdim=False, dtype=None):
    """As PyTorch's: of one number its magnitude, whatever the order, so that no power leaves the format."""
    b, x, dims = site.b, site.wide(x), dims_of(dim, len(x.shape))
    if order != 0 and prod(x.shape[d] for d in dims) == 1:
        return site.cast(site.shaped(b.abs(x)))
    if order == 2:
        return site.cast(b.sqrt(total(site, b.multiply(x, x), dims)))
    if order in (1, float("inf")):
        return site.cast(total(site, b.abs(x), dims, "add" if order == 1 else "maximum"))
    if order == float("-inf"):
        return site.cast(total(site, b.abs(x), dims, "minimum"))
    if order == 0:
        return site.cast(total(site, b.convert(b.compare(x, "NE", 0.0), x.dtype), dims))
    powers = total(site, b.binary("power", b.abs(x), float(order)), dims)
    return site.cast(b.binary("power", powers, 1.0 / float(order)))
