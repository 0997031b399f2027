# SPDX-License-Identifier: Apache-2.0
"""Tensors made from nothing: constants and ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.frontends.torch.lowerings.registry import LoweringSite, lowers
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import float32, int32

# Operators that make ones, and zeros where nobody says what.
ONES = ("ones.default", "ones_like.default", "new_ones.default")
ZEROS = (
    "zeros.default",
    "zeros_like.default",
    "new_zeros.default",
    "empty.memory_format",
    "empty_like.default",
    "new_empty.default",
    "empty_permuted.default",
    "empty_strided.default",
    "new_empty_strided.default",
)


def fill(site: LoweringSite, value: float) -> Value:
    """A constant of the result's type."""
    if not site.dtype.is_float:
        value = int(value)
    return site.b.constant(value, site.dtype, site.shape)


@lowers("full.default", "full_like.default")
def full(site, _like, value, *rest, **where):
    return fill(site, value)


@lowers("new_full.default")
def new_full(site, _like, size, value, **where):
    return fill(site, value)


@lowers("scalar_tensor.default")
def scalar_tensor(site, value, **where):
    return fill(site, value)


@lowers("fill.Scalar")
def fill_scalar(site, x, value):
    return fill(site, value)


@lowers("fill.Tensor")
def fill_tensor(site, x, value):
    return site.b.broadcast_to(site.cast(value), site.shape)


@lowers(*ONES)
def ones(site, *rest, **where):
    return fill(site, 1)


@lowers(*ZEROS)
def zeros(site, *rest, **where):
    return fill(site, 0)


@lowers("arange.default")
def arange(site, end, **where):
    return arange_step(site, 0, end, 1)


@lowers("arange.start")
def arange_start(site, start, end, **where):
    return arange_step(site, start, end, 1)


@lowers("arange.start_step")
def arange_step(site, start, end, step=1, **where):
    b = site.b
    counts = b.iota(site.shape, site.dtype if site.dtype is int32 else float32)
    if step != 1:
        counts = b.multiply(counts, step)
    return site.cast(b.add(counts, start) if start != 0 else counts)


@lowers("tril_indices.default")
def tril_indices(site, row, col, offset=0, **where):
    return _places(site, np.tril_indices(row, offset, col))


@lowers("triu_indices.default")
def triu_indices(site, row, col, offset=0, **where):
    return _places(site, np.triu_indices(row, offset, col))


def _places(site: LoweringSite, found: tuple[np.ndarray[Any, Any], ...]) -> Value:
    """Row and column numbers, known when compiling, as one constant."""
    return site.b.constant(np.stack(found).astype(site.dtype.numpy), site.dtype, site.shape)
