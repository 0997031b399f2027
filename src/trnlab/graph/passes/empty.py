# SPDX-License-Identifier: Apache-2.0
"""Replace what is computed of tensors without elements: such a tensor is a constant, and so is a sum of nothing."""

from __future__ import annotations

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import CALL, OPS
from trnlab.graph.passes.rewrite import rewrite
from trnlab.numerics.dtypes import DType, bool_

_IDENTITY = {"add": 0, "multiply": 1, "or": 0, "and": -1}


def fold_empty(graph: Graph) -> bool:
    """After this, no op but a custom_call reads or makes a tensor without elements, constants apart."""
    return rewrite(graph, dict.fromkeys(OPS, _fold))


def _fold(op: Op, b: GraphBuilder) -> Value | tuple[Value, ...] | None:
    if OPS[op.name].kind == CALL or op.name == "constant":
        return None
    if all(v.type.size == 0 for v in op.results):
        return tuple(b.constant(_number(0, v.dtype), v.dtype, v.shape) for v in op.results)
    if all(v.type.size for v in op.operands):
        return None
    return _of_nothing(op, b)


def _of_nothing(op: Op, b: GraphBuilder) -> Value | None:
    """An op with elements in its result and none in an operand."""
    result = op.result
    if op.name == "reduce":
        return b.constant(_start(op.attrs["kind"], result.dtype), result.dtype, result.shape)
    if op.name in ("dot_general", "convolution"):
        return b.constant(_number(0, result.dtype), result.dtype, result.shape)
    if op.name == "pad":
        return b.broadcast_in_dim(op.operands[1], result.shape, ())
    if op.name == "scatter":
        return op.operands[0]
    if op.name == "concatenate":
        return b.concatenate([v for v in op.operands if v.type.size], op.attrs["dimension"])
    return None


def _start(kind: str, dtype: DType) -> bool | int | float:
    """What a reduction of nothing gives."""
    if kind not in _IDENTITY:
        low, high = dtype.limits
        return low if kind == "maximum" else high
    if kind == "and" and dtype.kind == "u":
        return int(dtype.limits[1])
    return _number(_IDENTITY[kind], dtype)


def _number(value: int, dtype: DType) -> bool | int | float:
    return bool(value) if dtype is bool_ else float(value) if dtype.is_float else value
