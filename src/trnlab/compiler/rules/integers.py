# SPDX-License-Identifier: Apache-2.0
"""Integers beyond what float32 holds: 32-bit arithmetic on GpSimd, and bits on Vector."""

from __future__ import annotations

from trnlab.compiler.emission.emitter import Emitter
from trnlab.graph.ir import Op

ARITHMETIC = {
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "maximum": "max",
    "minimum": "min",
}
COMPARE = {"EQ": "is_equal", "NE": "not_equal", "LT": "is_lt", "LE": "is_le", "GT": "is_gt", "GE": "is_ge"}
BITS = {
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "shift_left": "left_shift",
    "shift_right_logical": "right_shift",
}


def words(e: Emitter, op: Op) -> None:
    """32-bit numbers, wrapping: only GpSimd computes on them, only tile with tile."""
    alu = COMPARE[op.attrs["comparison_direction"]] if op.name == "compare" else ARITHMETIC[op.name]
    x, y = (e.ap(v) for v in op.operands)
    tile = e.dst(op.result)
    e.word_op(tile, e.as_wide_as(tile, x), e.as_wide_as(tile, y), alu)


def bits(e: Emitter, op: Op) -> None:
    """Bit by bit, in the operands' own format: a number or a row value need no tile."""
    lhs, rhs = op.operands
    x, y = (held if isinstance(held := e.get(v), float) else e.ap(v) for v in op.operands)
    if isinstance(x, float) and isinstance(y, float):
        e.values[op.result] = e.fold(op, x, y)
        return
    tile = e.dst(op.result)
    e.charge_vector(tile)
    if not isinstance(x, float) and (isinstance(y, float) or (e.is_wide(lhs) and not e.is_wide(rhs))):
        operand = int(y) if isinstance(y, float) else y
        e.b.tensor_scalar(dst=tile, data=e.as_wide_as(tile, x), operand0=operand, op0=BITS[op.name])
    elif not isinstance(y, float) and (isinstance(x, float) or (e.is_wide(rhs) and not e.is_wide(lhs))):
        operand = int(x) if isinstance(x, float) else x
        data = e.as_wide_as(tile, y)
        e.b.tensor_scalar(dst=tile, data=data, operand0=operand, op0=BITS[op.name], reverse0=True)
    else:
        assert not isinstance(x, float)
        assert not isinstance(y, float)
        x, y = e.as_wide_as(tile, x), e.as_wide_as(tile, y)
        e.b.tensor_tensor(dst=tile, data1=x, data2=y, op=BITS[op.name])


def invert(e: Emitter, op: Op) -> None:
    """Every bit the other way."""
    data = e.ap(op.operands[0])
    tile = e.dst(op.result)
    e.charge_vector(tile)
    e.b.tensor_scalar(dst=tile, data=e.as_wide_as(tile, data), operand0=None, op0="invert")
