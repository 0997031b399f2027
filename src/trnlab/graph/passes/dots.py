# SPDX-License-Identifier: Apache-2.0
"""Fold into dot_general what its dimension numbers and its result format can say."""

from __future__ import annotations

from typing import Any

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.passes.rewrite import made_by, rewrite
from trnlab.graph.passes.shapes import holds_exactly

_SIDES = ("lhs", "rhs")


def fold_into_dots(graph: Graph) -> bool:
    """Transposed and widened operands, transposed and narrowed results, and results that are summed further."""
    alone = graph.read_once()
    return rewrite(
        graph,
        {
            "dot_general": _operands,
            "transpose": lambda op, b: _result_transposed(op, b, alone),
            "convert": lambda op, b: _result_converted(op, b, alone),
            "reduce": lambda op, b: _result_summed(op, b, alone),
        },
    )


def _operands(op: Op, b: GraphBuilder) -> Value | None:
    attrs, operands = dict(op.attrs), list(op.operands)
    for i, side in enumerate(_SIDES):
        inner = made_by(operands[i], "transpose")
        if inner and _keeps_free_order(attrs, side, inner.attrs["permutation"]):
            for key in (f"{side}_batching_dimensions", f"{side}_contracting_dimensions"):
                attrs[key] = tuple(inner.attrs["permutation"][a] for a in attrs[key])
            operands[i] = inner.operands[0]
    narrow = [_narrow(v) for v in operands]
    if narrow[0] is not None and narrow[1] is not None and narrow[0].dtype is narrow[1].dtype:
        operands = [v for v in narrow if v is not None]
    return None if operands == list(op.operands) else b.op("dot_general", *operands, **attrs)


def _keeps_free_order(attrs: dict[str, Any], side: str, permutation: tuple[int, ...]) -> bool:
    """Free dimensions appear in the result in operand order, so a transpose may not swap two of them."""
    used = attrs[f"{side}_batching_dimensions"] + attrs[f"{side}_contracting_dimensions"]
    free = [source for axis, source in enumerate(permutation) if axis not in used]
    return free == sorted(free)


def _narrow(value: Value) -> Value | None:
    """What was widened without loss: products of narrow floats are exact in float32, so widening changes nothing."""
    inner = made_by(value, "convert")
    if inner is None or not inner.operands[0].dtype.is_float or not value.dtype.is_float:
        return None
    return inner.operands[0] if holds_exactly(inner.operands[0].dtype, value.dtype) else None


def _result_transposed(op: Op, b: GraphBuilder, alone: set[Value]) -> Value | None:
    """The transpose that swaps the lhs and rhs parts of the result is the product with its operands swapped."""
    dot = made_by(op.operands[0], "dot_general")
    if dot is None or op.operands[0] not in alone:
        return None
    batch, rank = len(dot.attrs["lhs_batching_dimensions"]), len(op.result.shape)
    rhs_free = len(dot.operands[1].shape) - batch - len(dot.attrs["rhs_contracting_dimensions"])
    swap = (*range(batch), *range(rank - rhs_free, rank), *range(batch, rank - rhs_free))
    if op.attrs["permutation"] != swap:
        return None
    flipped = {_other(key): value for key, value in dot.attrs.items()}
    return b.op("dot_general", *dot.operands[::-1], **flipped)


def _other(key: str) -> str:
    return key.replace("lhs", "rhs") if key.startswith("lhs") else key.replace("rhs", "lhs")


def _result_converted(op: Op, b: GraphBuilder, alone: set[Value]) -> Value | None:
    """The sum is rounded once, to the format that is asked for: a convert after it says the same. Reshapes between
    the two are looked through."""
    value = op.operands[0]
    while value in alone and (moved := made_by(value, "reshape")) is not None:
        value = moved.operands[0]
    dot = made_by(value, "dot_general")
    if dot is None or value not in alone or not op.result.dtype.is_float or value.dtype.name != "float32":
        return None
    return b.reshape(b.op("dot_general", *dot.operands, **{**dot.attrs, "dtype": op.result.dtype}), op.result.shape)


def _result_summed(op: Op, b: GraphBuilder, alone: set[Value]) -> Value | None:
    """A sum over batching dimensions is part of the product's own sum, which is made in float32 as well.

    The gradient of a weight is written so where the batch is a dimension of its own.
    """
    dot = made_by(op.operands[0], "dot_general")
    if dot is None or op.operands[0] not in alone or op.attrs["kind"] != "add" or op.result.dtype.name != "float32":
        return None
    summed, attrs = set(op.attrs["dimensions"]), dict(dot.attrs)
    if not summed or max(summed) >= len(attrs["lhs_batching_dimensions"]):
        return None
    for side in _SIDES:
        batch = attrs[f"{side}_batching_dimensions"]
        moved = tuple(d for i, d in enumerate(batch) if i in summed)
        attrs[f"{side}_batching_dimensions"] = tuple(d for i, d in enumerate(batch) if i not in summed)
        attrs[f"{side}_contracting_dimensions"] = moved + attrs[f"{side}_contracting_dimensions"]
    return None if attrs["lhs_mx"] or attrs["rhs_mx"] else b.op("dot_general", *dot.operands, **attrs)
