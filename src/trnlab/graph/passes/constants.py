# SPDX-License-Identifier: Apache-2.0
"""Compute what depends on constants alone, without ever filling a large array.

A constant filled with one number goes through elementwise ops as that number and through shape ops as itself; arrays
of up to MAX_ELEMENTS go through any op. Larger ones are left alone: they would cost memory, HBM and time to load.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import apply
from trnlab.graph.ir import Graph, Op, TensorType, Value
from trnlab.graph.ops import CALL, COLLECTIVE, ELEMENTWISE, OPS
from trnlab.graph.passes.rewrite import rewrite, splat

MAX_ELEMENTS = 1024
_KEEPS_SPLATS = ("broadcast_in_dim", "reshape", "transpose", "slice", "concatenate")
_SAME_FOR_ONE = ("maximum", "minimum", "and", "or")  # reductions of equal numbers that give that number


def fold_constants(graph: Graph) -> bool:
    """Replace ops of constants by constants."""
    return rewrite(graph, dict.fromkeys(OPS, _fold))


def _fold(op: Op, b: GraphBuilder) -> Value | None:
    operands = op.operands
    if not operands or any(v.op is None or v.op.name != "constant" for v in operands) or len(op.results) != 1:
        return None
    if OPS[op.name].kind in (CALL, COLLECTIVE):
        return None
    numbers = [splat(v) for v in operands]
    target = op.result.type
    if all(n is not None for n in numbers):
        if op.name in _KEEPS_SPLATS and all(_same(n, numbers[0]) for n in numbers):
            return b.constant(numbers[0], target.dtype, target.shape)
        if op.name == "reduce" and op.attrs["kind"] in _SAME_FOR_ONE and operands[0].type.size > 0:
            return b.constant(numbers[0], target.dtype, target.shape)
        if OPS[op.name].kind == ELEMENTWISE:
            scalars = [np.asarray(n, v.dtype.numpy) for n, v in zip(numbers, operands)]
            (result,) = apply(op.name, scalars, [TensorType((), v.dtype) for v in operands], op.attrs)
            return b.constant(result.item(), target.dtype, target.shape)
    if OPS[op.name].composite or max(target.size, *(v.type.size for v in operands)) > MAX_ELEMENTS:
        return None
    arrays = [np.broadcast_to(np.asarray(_value(v), v.dtype.numpy), v.shape) for v in operands]
    (result,) = apply(op.name, arrays, [v.type for v in operands], op.attrs)
    return b.constant(result, target.dtype, target.shape)


def _value(constant: Value) -> Any:
    assert constant.op is not None
    return constant.op.attrs["value"]


def _same(a: Any, b: Any) -> bool:
    """Equal down to the sign of zero; NaN equals NaN."""
    return repr(a) == repr(b)
