# SPDX-License-Identifier: Apache-2.0
"""Functions of one operand, on the Scalar engine where its tables have them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trnlab.compiler.emission.emitter import Emitter, Narrow, Pending
from trnlab.compiler.rules.recipes import MAGNITUDE, ResultRecipe
from trnlab.compiler.rules.reductions import combine, row_sum
from trnlab.graph.ir import Op
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import bfloat16
from trnlab.program import AP

LARGE = 2.0**64
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
        combine(e, total, extra["reduce_res"], Engine.SCALAR)
        e.done.add(total)
        e.release(op.result)
        e.computed(total.result)


def magnitude(e: Emitter, op: Op) -> None:
    """|x|, in 16 bits by VectorE where that takes four elements a cycle."""
    data = e.get(op.operands[0])
    if not (isinstance(data, AP) and e.is_wide(op.result) and op.result.dtype is bfloat16 and e.is_quick(data)):
        unary(e, op)
        return
    tile = e.dst(op.result)
    e.charge(Engine.VECTOR, tile.free // 4)
    e.b.tensor_scalar(dst=tile, data=e.as_wide_as(tile, data), op0="abs")


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


def log_plus_one(e: Emitter, op: Op) -> None:
    """log(1 + x) = log(u) + (x - (u - 1)) / u for u = 1 + x as rounded: the second term is what rounding u lost.

    Bounds keep infinity out of the correction, and a divisor of zero at x = -1, where it is zero. The sign of x goes
    in last, for x = -0.0.
    """
    r = ResultRecipe(e, op)
    x = r.float32(r.operands[0])
    bounded = r.scalars(x, "min", LARGE)
    grown = r.scalars(bounded, "add", 1.0)
    lost = r.fused(grown, "subtract", 1.0, "subtract", bounded, reverse=True)
    inverse = r.reciprocal(r.scalars(grown, "max", 1 / LARGE))
    correction = r.pair(lost, "multiply", inverse)
    result = r.pair(r.function(x, "log", bias=1.0), "add", correction)
    r.with_sign(result, x, r.out)
    r.done()


def exponential_minus_one(e: Emitter, op: Op) -> None:
    """exp(x) - 1 for |x| >= 1, where little cancels; 2 t / (1 - t) with t = tanh(x / 2) for smaller x."""
    r = ResultRecipe(e, op)
    (x,) = r.operands
    half = r.function(x, "tanh", scale=0.5)
    inverse = r.reciprocal(r.less(1.0, half))
    near = r.where(x, "is_lt", 1.0, magnitude=True)
    r.scalars(r.function(x, "exp"), "subtract", 1.0, dst=r.out)
    r.replace(r.out, near, r.fused(half, "multiply", 2.0, "multiply", inverse))
    r.done()


def arctangent(e: Emitter, op: Op) -> None:
    """Arctangent of min(|x|, 1 / |x|), which the Scalar engine's table covers, and pi / 2 less that for |x| > 1."""
    r = ResultRecipe(e, op)
    x = r.float32(r.operands[0])
    size = r.function(x, "abs")
    near = r.function(r.pair(size, "min", r.reciprocal(size)), "arctan")
    r.scalars(near, "bypass", 0.0, dst=r.out)
    r.replace(r.out, r.where(size, "is_gt", 1.0), r.less(math.pi / 2, near))
    r.with_sign(r.out, x, r.out)
    r.done()


def with_sign_of(e: Emitter, op: Op) -> None:
    """The magnitude of the first operand with the sign bit of the second."""
    r = ResultRecipe(e, op)
    size, sign = (r.float32(v) for v in r.operands)
    bits = r.bits(size, "bitwise_and", MAGNITUDE)
    r.with_sign(bits, sign, r.out)
    r.done()


def is_finite(e: Emitter, op: Op) -> None:
    """Whether the magnitude is at most the largest finite number; no comparison with NaN holds."""
    data = e.ap(op.operands[0])
    space = e.wide if data.free > 1 else e.narrow
    size = e.temp(space, data)
    e.b.activation(dst=size, data=data, op="abs")
    e.b.tensor_scalar(dst=e.dst(op.result), data=size, operand0=float(np.finfo(np.float32).max), op0="is_le")
