# SPDX-License-Identifier: Apache-2.0
"""Running sums along the last dimension, as products with a triangle of ones: the PE array is the chip's adder of
rows. They are summed in blocks of a fixed length; what comes before each block is the running sum of the blocks' own.
"""

from __future__ import annotations

from math import inf

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import bfloat16, int32

_WHOLE = 512  # elements that one triangle sums
_BLOCK = 128  # of longer ones: what the PE array sums at once


def running_sums(b: GraphBuilder, x: Value) -> Value:
    """Running sums of x [..., N], in float32 or int32; beyond the length of one triangle in blocks."""
    size = x.shape[-1]
    if size <= _WHOLE:
        return _sums_of_row(b, x)
    count = -(-size // _BLOCK)
    none = [0] * (len(x.shape) - 1)
    whole = b.pad(x, [*none, 0], [*none, count * _BLOCK - size]) if count * _BLOCK > size else x
    inside = _sums_of_row(b, b.reshape(whole, (*x.shape[:-1], count, _BLOCK)))
    last = len(inside.shape) - 1
    ends = b.reshape(b.slice_dim(inside, last, _BLOCK - 1, _BLOCK), (*x.shape[:-1], count))
    before = b.pad(b.slice_dim(running_sums(b, ends), last - 1, 0, count - 1), [*none, 1], [*none, 0])
    summed = b.add(inside, b.reshape(before, (*before.shape, 1)))
    return b.slice_dim(b.reshape(summed, whole.shape), last - 1, 0, size)


def _sums_of_row(b: GraphBuilder, x: Value) -> Value:
    """By one triangle. In a product an infinity would spoil all of its row (0 times infinity is NaN): counted, it
    comes back behind its place, and one of each sign, or NaN, makes NaN."""
    if not x.dtype.is_float:
        return _triangle(b, x)
    nan, sums = b.compare(x, "NE", x), _triangle(b, b.select(b.is_finite(x), x, 0.0))
    for sign in (inf, -inf):
        one = b.convert(b.or_(nan, b.compare(x, "EQ", sign)), bfloat16)
        sums = b.select(b.compare(_triangle(b, one), "GT", 0.0), b.add(sums, sign), sums)
    return sums


def _triangle(b: GraphBuilder, x: Value) -> Value:
    size = x.shape[-1]
    upper = b.compare(b.iota((size, size), int32, 0), "LE", b.iota((size, size), int32, 1))
    return b.dot_general(x, b.convert(upper, x.dtype), ((len(x.shape) - 1,), (0,)), precision="HIGHEST")
