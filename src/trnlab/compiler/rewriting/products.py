# SPDX-License-Identifier: Apache-2.0
"""Sums of products: one product whose contraction is all of theirs, added up in PSUM.

The gradient of what several layers read is a sum of matmuls, one for each. Product by product, every partial sum
would go through memory. Sums of products in bfloat16 are rounded to it once, not after each product and addition.

Beside a weight's gradient, the sum of one operand over the contraction is a product with one column of ones: the
bias gradient, for which nothing need be read once more. Which operand it is depends on how the weight lies in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from trnlab.compiler.analysis.strided import LOOK_OPS, VIEW_OPS
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, TensorType, Value
from trnlab.graph.ops import DOT, OPS
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import made_by, rewrite
from trnlab.numerics.dtypes import bfloat16, float32

BLOCK = 128  # of a contraction: a matmul's rows


def sum_products(graph: Graph) -> None:
    """Make x + a b + c d into x + (a b + c d); same meaning, but for the order of sums in fp32."""
    alone = graph.read_once()
    rewrite(graph, {"add": lambda op, b: _add(op, b, alone)})
    remove_dead_ops(graph)


def sum_beside_products(graph: Graph) -> None:
    """Have sums over rows of what a product contracts over rows computed beside that product; same meaning."""
    place = {op: i for i, op in enumerate(graph.ops)}
    users = graph.users()
    products: dict[Value, list[tuple[Op, int]]] = {}
    for op in graph.ops:
        if op.name == "dot_general" and _contracts_rows(op):
            for side, value in enumerate(op.operands):
                products.setdefault(_base(value), []).append((op, side))
    sums: dict[Op, tuple[Op, int]] = {}
    for op in graph.ops:
        base = _summed(op) if op.name == "reduce" else None
        for dot, side in products.get(base, ()) if base is not None else ():
            later = all(place[u] > place[dot] for u in users.get(op.result, ()))
            if later and dot not in sums and op.result.type.size == dot.operands[side].shape[1]:
                sums[dot] = op, side
                break
    _compute_beside(graph, sums)
    remove_dead_ops(graph)


def _contracts_rows(op: Op) -> bool:
    attrs = op.attrs
    plain = not attrs["lhs_batching_dimensions"] and not attrs["lhs_mx"]
    rows = attrs["lhs_contracting_dimensions"] == attrs["rhs_contracting_dimensions"] == (0,)
    lhs, rhs = (v.type for v in op.operands)
    return (
        plain and rows and lhs.rank == rhs.rank == 2 and lhs.dtype is rhs.dtype and lhs.dtype in (bfloat16, float32)
    )


def _summed(op: Op) -> Value | None:
    """What a sum over leading dimensions sums up, as it is before it is widened."""
    (x,), dims = op.operands, op.attrs["dimensions"]
    if op.attrs["kind"] != "add" or x.dtype is not float32 or dims != tuple(range(len(dims))):
        return None
    x = _base(x)
    wide = made_by(x, "convert")
    return _base(wide.operands[0]) if wide is not None and wide.operands[0].dtype is bfloat16 else x


def _base(value: Value) -> Value:
    """The value whose elements, in their order, a value has in another shape."""
    while made_by(value, "reshape"):
        assert value.op is not None
        value = value.op.operands[0]
    return value


def _compute_beside(graph: Graph, sums: Mapping[Op, tuple[Op, int]]) -> None:
    """`sums`: by product, the reduction that it takes along, and of which operand. Values stay the same objects, so
    that taps find them."""
    moved = {op for op, _ in sums.values()}
    ops: list[Op] = []
    for op in graph.ops:
        if op not in moved:
            ops.append(op)
        if op in sums:
            taken, side = sums[op]
            op.name, op.attrs = "trn.dot_and_sums", {"dtype": op.result.dtype, "summed": ("lhs", "rhs")[side]}
            total = Value(TensorType(op.operands[side].shape[1:], float32), op, 1, "")
            op.results = (op.result, total)
            taken.name, taken.operands, taken.attrs = "reshape", (total,), {"shape": taken.result.shape}
            ops.append(taken)
    graph.ops = ops


def _add(op: Op, b: GraphBuilder, alone: set[Value]) -> None:
    """One sum, of two products or of a product and a sum that has one; the results read by nobody else. The op is
    changed in place: its result stays the same value, so that taps find it."""
    for x, y in (op.operands, op.operands[::-1]):
        last = _product(y, alone)
        if last is None:
            continue
        first = _product(x, alone)
        if first is not None and _together(first, last):
            whole = _joined(b, first, last, alone)
            op.name, op.operands, op.attrs = "reshape", (whole,), {"shape": op.result.shape}
            return
        inner = made_by(x, "add") if x in alone else None
        for rest, one in (inner.operands, inner.operands[::-1]) if inner is not None else ():
            first = _product(one, alone)
            if first is not None and _together(first, last):
                shaped = b.reshape(_joined(b, first, last, alone), op.result.shape)
                alone.add(shaped)
                op.operands = (rest, shaped)
                return


def _product(value: Value, alone: set[Value]) -> Op | None:
    """The product that a value is, reshapes looked through; of matrices, and for this value only."""
    while value in alone and made_by(value, "reshape"):
        assert value.op is not None
        value = value.op.operands[0]
    op = value.op
    if op is None or value not in alone or OPS[op.name].kind != DOT or value.dtype not in (float32, bfloat16):
        return None
    plain = not op.attrs.get("lhs_batching_dimensions") and not op.attrs.get("lhs_mx")
    one = all(len(op.attrs[key]) == 1 for key in ("lhs_contracting_dimensions", "rhs_contracting_dimensions"))
    whole = all(_contraction(op, v) % BLOCK == 0 for v in op.operands[::2])
    return op if plain and one and whole and all(v.type.rank == 2 for v in op.operands) else None


def _contraction(op: Op, lhs: Value) -> int:
    dim: int = op.attrs["lhs_contracting_dimensions"][0]
    return lhs.shape[dim]


def _together(first: Op, last: Op) -> bool:
    """Whether two products have results of one shape, and operands that lie in memory alike."""
    same = all(first.attrs[key] == last.attrs[key] for key in _DIMENSIONS) and first.result.type == last.result.type
    return same and all(_alike(x, y) or _both_by_rows(x, y) for x, y in zip(first.operands[:2], last.operands[:2]))


def _both_by_rows(x: Value, y: Value) -> bool:
    """Whether two values of one format, contractions of any length, have their last dimension innermost in memory."""
    return x.dtype is y.dtype and _by_rows(x) and _by_rows(y)


def _by_rows(value: Value) -> bool:
    """Whether a value's last dimension is innermost in memory, be it a view or a copy."""
    while value.op is not None and value.op.name in LOOK_OPS:
        axes = value.op.attrs.get("permutation", (0,))
        if value.op.name in ("slice", "broadcast_in_dim") or axes[-1] != len(axes) - 1:
            return False
        value = value.op.operands[0]
    return value.op is None or value.op.name not in ("iota", "constant")


def _alike(x: Value, y: Value) -> bool:
    """Whether two values are the same views of tensors of one format."""
    if x.type != y.type:
        return False
    views = [v.op if v.op is not None and v.op.name in VIEW_OPS else None for v in (x, y)]
    one, other = views
    if one is None or other is None:
        return one is other
    return (one.name, one.attrs) == (other.name, other.attrs) and _alike(one.operands[0], other.operands[0])


def _joined(b: GraphBuilder, first: Op, last: Op, alone: set[Value]) -> Value:
    attrs: Mapping[str, object] = {key: first.attrs[key] for key in _DIMENSIONS}
    total = b.append(
        "trn.dot_sum", (*first.operands, *last.operands), {**attrs, "dtype": first.result.dtype}
    ).results[0]
    alone.add(total)
    return total


_DIMENSIONS = ("lhs_contracting_dimensions", "rhs_contracting_dimensions")
