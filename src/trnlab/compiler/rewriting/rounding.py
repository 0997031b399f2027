# SPDX-License-Identifier: Apache-2.0
"""Rounding and what commutes with it: a maximum with zero before or after, and comparisons with zero; and largest
elements of what was widened, which are those of the narrow format: VectorE reads that faster.

Autocast leaves a rounding between a normalisation and its ReLU, and compares the rounded result with zero on the way
back. Moved behind, the ReLU is part of the instruction that normalises.
"""

from __future__ import annotations

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import made_by, rewrite, splat
from trnlab.numerics.dtypes import bfloat16, float32


def round_last(graph: Graph) -> None:
    """Same meaning; but that zero is told from what rounding makes zero, below 2^-133 in magnitude."""
    rewrite(graph, {"convert": _convert, "compare": _compare, "reduce": _extreme})
    remove_dead_ops(graph)


def _convert(op: Op, b: GraphBuilder) -> Value | None:
    """round(max(round(x), 0)) = round(max(x, 0))."""
    largest = made_by(op.operands[0], "maximum")
    if op.result.dtype is not bfloat16 or largest is None or splat(largest.operands[1]) != 0:
        return None
    exact = _rounded(largest.operands[0])
    return None if exact is None else b.convert(b.maximum(exact, 0.0), bfloat16)


def _compare(op: Op, b: GraphBuilder) -> Value | None:
    """Compare the sign of round(max(x, 0)) by that of x."""
    x, zero = op.operands
    direction = op.attrs["comparison_direction"]
    if splat(zero) != 0 or direction not in ("LE", "GT"):
        return None
    source = x
    while True:
        largest, rounded = made_by(source, "maximum"), made_by(source, "convert")
        if largest is not None and splat(largest.operands[1]) == 0:
            source = largest.operands[0]
        elif rounded is not None and {source.dtype, rounded.operands[0].dtype} == {bfloat16, float32}:
            source = rounded.operands[0]
        else:
            break
    return None if source is x else b.compare(source, direction, 0.0)


def _extreme(op: Op, b: GraphBuilder) -> Value | None:
    """max(|wide(x)|) = wide(max(|x|)), as scales of FP8 ask for. A maximum by itself is a softmax's, and stays."""
    size = made_by(op.operands[0], "abs")
    wide = made_by(size.operands[0], "convert") if size is not None else None
    if op.attrs["kind"] not in ("maximum", "minimum") or wide is None:
        return None
    if (wide.operands[0].dtype, wide.result.dtype) != (bfloat16, float32):
        return None
    return b.convert(b.reduce(b.abs(wide.operands[0]), op.attrs["dimensions"], op.attrs["kind"]), float32)


def _rounded(value: Value) -> Value | None:
    """x where a value is x rounded to bf16 and back."""
    wide = made_by(value, "convert")
    narrow = made_by(wide.operands[0], "convert") if wide is not None else None
    if wide is None or narrow is None or wide.result.dtype is not float32 or narrow.result.dtype is not bfloat16:
        return None
    return narrow.operands[0] if narrow.operands[0].dtype is float32 else None
