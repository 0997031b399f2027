# SPDX-License-Identifier: Apache-2.0
"""Mean and variance of what a product makes, in one look at it.

A normalisation spells them out as a sum, and a sum of squared distances from what that gives: two looks at memory.
The chip combines the statistics of parts (`bn_stats`, `bn_aggr`), so that the product's epilogue takes them of each
tile on its way out. The squares are of distances from the mean of the part: nothing cancels.
"""

from __future__ import annotations

from math import isclose, prod

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import CONVOLUTION, DOT, OPS
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import made_by, rewrite, splat
from trnlab.numerics.dtypes import float32

AVERAGES = ("multiply", "divide")
LEAST_ROW = 256  # elements: shorter rows are loaded once and stay


def join_moments(graph: Graph) -> None:
    """Replace means and variances along rows of products; same meaning."""
    means: dict[Value, Value] = {}

    def average(op: Op, b: GraphBuilder) -> Value | None:
        total = _average(op)
        if total is None:
            return None
        x, dims = total.operands[0], total.attrs["dimensions"]
        if op.result in spread:
            both = b.append("trn.moments", (as_made(x),), {"dimensions": dims}).result
            means[op.result] = both
            return part_of(b, both, 0)
        mean = variances.get(op.result)
        return part_of(b, means[mean], 1) if mean in means else None

    spread, variances = _pairs(graph)
    if spread:
        rewrite(graph, dict.fromkeys(AVERAGES, average))
        remove_dead_ops(graph)


def part_of(b: GraphBuilder, both: Value, index: int) -> Value:
    """One of two numbers of each row."""
    return b.reshape(b.slice_dim(both, 0, index, index + 1), both.shape[1:])


def _pairs(graph: Graph) -> tuple[set[Value], dict[Value, Value]]:
    """Means that have a variance, and for each variance its mean."""
    variances = {}
    for op in graph.ops:
        total = _average(op)
        squares = made_by(total.operands[0], "multiply") if total is not None else None
        apart = made_by(squares.operands[0], "subtract") if squares is not None else None
        if total is None or squares is None or apart is None or squares.operands[1] is not apart.result:
            continue
        mean = made_by(apart.operands[1], "broadcast_in_dim")
        average = mean.operands[0].op if mean is not None else None
        first = _average(average) if average is not None else None
        if first is None or mean is None or first.operands[0] is not apart.operands[0]:
            continue
        dims, shape = first.attrs["dimensions"], apart.result.shape
        kept = tuple(d for d in range(len(shape)) if d not in dims)
        same = dims == total.attrs["dimensions"] and mean.attrs["broadcast_dimensions"] == kept
        if same and is_product(first.operands[0]) and prod(shape[d] for d in dims) >= LEAST_ROW:
            variances[op.result] = first_mean = mean.operands[0]
            assert first_mean.dtype is float32
    return set(variances.values()), variances


def _average(op: Op) -> Op | None:
    """The sum over trailing dimensions that an op divides by the number of its terms."""
    if op.name not in AVERAGES:
        return None
    total, number = made_by(op.operands[0], "reduce"), splat(op.operands[1])
    if total is None or number is None or total.attrs["kind"] != "add" or total.result.dtype is not float32:
        return None
    shape, dims = total.operands[0].shape, total.attrs["dimensions"]
    trailing = tuple(dims) == tuple(range(len(shape) - len(dims), len(shape))) and len(dims) < len(shape)
    count = prod(shape[d] for d in dims)
    factor = number if op.name == "multiply" else 1 / number if number else 0.0
    return total if trailing and count and isclose(factor, 1 / count, rel_tol=2**-22) else None


def as_made(value: Value) -> Value:
    """The value before a convert that loses nothing."""
    wide = made_by(value, "convert")
    return wide.operands[0] if wide is not None and wide.operands[0].dtype.is_float else value


def is_product(value: Value) -> bool:
    """Whether a value comes out of a product or a convolution, perhaps with its dimensions in another order."""
    op = as_made(value).op
    while op is not None and op.name in ("reshape", "transpose"):
        op = op.operands[0].op
    return op is not None and OPS[op.name].kind in (DOT, CONVOLUTION)
