# SPDX-License-Identifier: Apache-2.0
"""Functions of one operand, on the Scalar engine where its tables have them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trnlab.compiler.emitter import Emitter, Narrow, Pending
from trnlab.compiler.rules.reductions import combine, row_sum
from trnlab.graph.ir import Op
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import int32
from trnlab.program import AP

ACTIVATION = {
    "exponential": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "tanh": "tanh",
    "logistic": "sigmoid",
    "erf": "erf",
    "abs": "abs",
    "sign": "sign",
    "trn.silu": "silu",
    "trn.silu_dx": "silu_dx",
}


def activate(e: Emitter, op: Op, func: str) -> None:
    """A function of the Scalar engine, with what precedes it as scale or bias and its row sum if one is wanted."""
    value = op.operands[0]
    held = e.get(value)
    if isinstance(held, float):
        held = e.loader.constant(held, e.frame.rows)
    scale: Narrow = 1.0
    bias: AP | None = None
    if isinstance(held, Pending):
        folded = _as_affine(e, held)
        data = e.ap(held.source) if folded else e.ap(value)
        scale, bias = folded or (1.0, None)
    else:
        data = held
    tile = e.dst(op.result)
    data = e.as_wide_as(tile, data)
    extra: dict[str, Any] = {} if bias is None else {"bias": bias}
    total = e.plan.summed.get(op.result)
    if total is not None and e.is_wide(op.result) and e.plan.converted.get(op.result) is None:
        extra["reduce_res"] = row_sum(e, total)
    e.charge(Engine.SCALAR, tile.free)
    e.b.activation(dst=tile, data=data, op=func, scale=scale, **extra)
    if total is not None and "reduce_res" in extra:
        combine(e, total, extra["reduce_res"])
        e.done.add(total)
        e.release(op.result)
        e.store_if_asked(total.result)


def _as_affine(e: Emitter, held: Pending) -> tuple[Narrow, AP | None] | None:
    if held.op == "multiply":
        return held.operand, None
    if held.op == "add":
        return 1.0, _as_bias(e, held.operand)
    if held.op == "subtract" and not held.reverse:
        if isinstance(held.operand, float):
            return 1.0, _as_bias(e, -held.operand)
        negated = e.temp(e.narrow, held.operand)
        e.b.tensor_scalar(dst=negated, data=held.operand, operand0=-1.0, op0="multiply")
        return 1.0, negated
    return None


def _as_bias(e: Emitter, operand: Narrow) -> AP:
    return e.loader.constant(operand, e.frame.rows) if isinstance(operand, float) else operand


def unary(e: Emitter, op: Op) -> None:
    """Functions that one instruction computes."""
    held = e.get(op.operands[0])
    if isinstance(held, float):
        held = e.loader.constant(held, e.frame.rows)
    func = ACTIVATION.get(op.name)
    if op.name in ("trn.gelu", "trn.gelu_dx"):
        tanh = op.attrs["approximate"] == "tanh"
        func = {"trn.gelu": "gelu", "trn.gelu_dx": "gelu_dx"}[op.name]
        func = func.replace("gelu", "gelu_apprx_tanh") if tanh else func
    assert func is not None
    activate(e, op, func)


def rounding(e: Emitter, op: Op) -> None:
    """Whole numbers by way of int32, which rounds half to even; floor and ceil correct by one where it overshot."""
    data = e.ap(op.operands[0])
    space = e.wide if data.free > 1 else e.narrow
    whole = e.temp(space, data, int32)
    e.b.tensor_copy(dst=whole, src=data)
    tile = e.dst(op.result)
    if op.name == "round_nearest_even":
        e.copy(tile, whole)
    else:
        over = e.temp(space, data)
        e.tensor_op(over, whole, data, "is_gt" if op.name == "floor" else "is_lt")
        e.tensor_op(tile, whole, over, "subtract" if op.name == "floor" else "add")


def shifted(e: Emitter, op: Op) -> None:
    """exp(x)-1 and log(1+x)."""
    if op.name == "log_plus_one":
        data = e.ap(op.operands[0])
        one = e.loader.constant(1.0, e.frame.rows)
        e.b.activation(dst=e.dst(op.result), data=data, op="log", bias=one)
    else:
        data = e.ap(op.operands[0])
        space = e.wide if data.free > 1 else e.narrow
        grown = e.temp(space, data)
        e.b.activation(dst=grown, data=data, op="exp")
        e.scalar_op(e.dst(op.result), grown, "subtract", 1.0, False)


def wave(e: Emitter, op: Op) -> None:
    """sin and cos: the activation engine's sine knows [-pi, pi] only, so whole turns are taken off first."""
    data = e.ap(op.operands[0])
    space = e.wide if data.free > 1 else e.narrow
    turns, rest, whole = e.temp(space, data), e.temp(space, data), e.temp(space, data, int32)
    quarter = 0.25 if op.name == "cosine" else 0.0
    e.b.tensor_scalar(dst=turns, data=data, operand0=1 / (2 * math.pi), op0="multiply", operand1=quarter, op1="add")
    e.b.tensor_copy(dst=whole, src=turns)
    e.tensor_op(rest, turns, whole, "subtract")
    e.b.activation(dst=e.dst(op.result), data=rest, op="sin", scale=2 * math.pi)


def is_finite(e: Emitter, op: Op) -> None:
    """Whether the magnitude is at most the largest finite number; no comparison with NaN holds."""
    data = e.ap(op.operands[0])
    space = e.wide if data.free > 1 else e.narrow
    size = e.temp(space, data)
    e.b.activation(dst=size, data=data, op="abs")
    e.b.tensor_scalar(dst=e.dst(op.result), data=size, operand0=float(np.finfo(np.float32).max), op0="is_le")
