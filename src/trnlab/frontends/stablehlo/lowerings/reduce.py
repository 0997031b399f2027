# SPDX-License-Identifier: Apache-2.0
"""Reductions: of one op, and of any body, by halves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.entries import TracedValue
from trnlab.frontends.stablehlo.lowerings.control import simple_body, starting
from trnlab.frontends.stablehlo.registry import OpSite, lowers
from trnlab.graph.interpret import identity
from trnlab.graph.ops import REDUCTIONS
from trnlab.numerics.dtypes import DType, bool_


@lowers("stablehlo.reduce")
def reduce(site: OpSite) -> Sequence[TracedValue]:
    """One op along dimensions where the body is one; else halves, combined element by element until one is left."""
    dims = tuple(sorted(mlir.ints(site.raw, "dimensions")))
    count = len(site.operands) // 2
    xs, starts = site.operands[:count], site.operands[count:]
    kind = simple_body(site) if count == 1 else None
    if kind in REDUCTIONS:
        (x,), (start,) = xs, starts
        found = site.op("reduce", x, dimensions=dims, kind=kind) if dims else x
        return [_with_start(site, kind, found, start)]
    return _by_halves(site, xs, starts, dims)


def _with_start(site: OpSite, kind: str, found: TracedValue, start: TracedValue) -> TracedValue:
    """The result, combined with what the reduction starts from unless that changes nothing."""
    number = starting(site, start)
    if number is not None and number == neutral(kind, found.type.dtype):
        return found
    return site.op(kind, found, start)


def neutral(kind: str, dtype: DType) -> Any:
    """The number that changes nothing."""
    return identity(kind, np.dtype(np.float32 if dtype.is_float else np.bool_ if dtype is bool_ else dtype.numpy))


def _by_halves(
    site: OpSite, xs: Sequence[TracedValue], starts: Sequence[TracedValue], dims: tuple[int, ...]
) -> list[TracedValue]:
    """The body is taken to be associative, as StableHLO allows; equal parts keep their order."""
    rank, shape = len(xs[0].shape), xs[0].shape
    order = (*(d for d in range(rank) if d not in dims), *dims)
    lead = tuple(shape[d] for d in order[: rank - len(dims)])
    size = int(np.prod([shape[d] for d in dims], dtype=np.int64))
    parts = [_moved(site, x, order, (*lead, size)) for x in xs]
    if size == 0:
        return [site.t.broadcast(s, lead) for s in starts]
    while size > 1:
        half = size // 2
        pieces = [[_cut(site, p, a, b) for p in parts] for a, b in ((0, half), (half, 2 * half), (2 * half, size))]
        combined = site.region(0, *pieces[0], *pieces[1])
        if size % 2:
            combined = [site.op("concatenate", c, r, dimension=len(lead)) for c, r in zip(combined, pieces[2])]
        parts, size = combined, half + size % 2
    parts = [site.op("reshape", p, shape=lead) for p in parts]
    return site.region(0, *(site.t.broadcast(s, lead) for s in starts), *parts)


def _moved(site: OpSite, x: TracedValue, order: tuple[int, ...], shape: tuple[int, ...]) -> TracedValue:
    moved = x if order == tuple(range(len(order))) else site.op("transpose", x, permutation=order)
    return moved if moved.shape == shape else site.op("reshape", moved, shape=shape)


def _cut(site: OpSite, x: TracedValue, low: int, high: int) -> TracedValue:
    """Elements low to high of the last dimension."""
    start = (0,) * (len(x.shape) - 1)
    limits = (*x.shape[:-1], high)
    return site.op("slice", x, start_indices=(*start, low), limit_indices=limits, strides=(1,) * len(x.shape))
