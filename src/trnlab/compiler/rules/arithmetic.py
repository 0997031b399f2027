# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, comparisons and logic: whole tiles, or a tile and one value per partition."""

from __future__ import annotations

from trnlab.compiler.emission.emitter import Emitter, Narrow, Pending
from trnlab.compiler.rules.choices import is_product
from trnlab.compiler.rules.functions import ACTIVATION, activate
from trnlab.compiler.rules.integers import COMPARE
from trnlab.graph.ir import Op, Value
from trnlab.isa.base import Engine, Memory
from trnlab.numerics.dtypes import float32
from trnlab.program import AP

ALU = {
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "maximum": "max",
    "minimum": "min",
    "remainder": "mod",
}
LOGICAL = {"and": "logical_and", "or": "logical_or", "xor": "logical_xor"}  # of truth values


def binary(e: Emitter, op: Op) -> None:
    """Arithmetic, comparisons and the logic of truth values, in float32."""
    lhs, rhs = op.operands
    alu = _alu(e, op)
    same = e.origin(lhs) is e.origin(rhs)
    if op.name == "multiply" and same and op.result.dtype.is_float and e.is_wide(lhs):
        activate(e, op, "square")
        return
    wide_lhs, wide_rhs = e.is_wide(lhs), e.is_wide(rhs)
    if wide_lhs and wide_rhs:
        _tensor_tensor(e, op, lhs, rhs, alu)
    elif wide_lhs:
        _tensor_scalar(e, op, lhs, alu, e.narrow_form(rhs), reverse=False)
    elif wide_rhs:
        _tensor_scalar(e, op, rhs, alu, e.narrow_form(lhs), reverse=True)
    elif e.is_wide(op.result):  # asked for in full though it varies less
        e.scalar_op(e.dst(op.result), e.spread(lhs), alu, e.narrow_form(rhs), reverse=False)
    else:
        _narrow_binary(e, op, lhs, rhs, alu)


def _alu(e: Emitter, op: Op) -> str:
    if op.name == "compare":
        return COMPARE[op.attrs["comparison_direction"]]
    return LOGICAL.get(op.name) or ALU[op.name]


def _narrow_binary(e: Emitter, op: Op, lhs: Value, rhs: Value, alu: str) -> None:
    x, y = e.get(lhs), e.get(rhs)
    if isinstance(x, float) and isinstance(y, float):
        e.values[op.result] = e.fold(op, x, y)
    elif isinstance(y, float):
        e.scalar_op(e.dst(op.result), e.ap(lhs), alu, y, reverse=False)
    elif isinstance(x, float):
        e.scalar_op(e.dst(op.result), e.ap(rhs), alu, x, reverse=True)
    else:
        e.tensor_op(e.dst(op.result), e.ap(lhs), e.ap(rhs), alu)


def _tensor_scalar(e: Emitter, op: Op, data: Value, alu: str, operand: Narrow, *, reverse: bool) -> None:
    held = e.get(data)
    if isinstance(held, Pending):
        source = e.ap(held.source)
        if _rectified(e, op, held, alu, operand, source):
            return
        tile = e.dst(op.result)
        bias = held.op == "multiply" and alu == "add" and not isinstance(operand, float)
        if bias and e.lighter(tile.free) is Engine.SCALAR:
            e.b.activation(dst=tile, data=source, op="identity", scale=held.operand, bias=operand)
            return
        if not bias:
            e.charge(Engine.VECTOR, tile.free)
        e.b.tensor_scalar(
            dst=tile,
            data=source,
            operand0=held.operand,
            op0=held.op,
            reverse0=held.reverse,
            operand1=operand,
            op1=alu,
            reverse1=reverse,
        )
    elif _can_wait(e, op):
        for value in op.operands:
            e.refs[e.origin(value)] += 1
        e.values[op.result] = Pending(op.result, data, alu, operand, reverse, op.operands)
    else:
        source = e.ap(data)
        e.scalar_op(e.dst(op.result), source, alu, operand, reverse)


def _rectified(e: Emitter, op: Op, held: Pending, alu: str, operand: Narrow, source: AP) -> bool:
    """max(x * scale + bias, 0) as one activation, where the sum is for that alone; whether it was.

    Where the sum is compared with zero, to select by, the maximum says as much: it is zero or not.
    """
    reader = e.plan.reader.get(op.result)
    alone = e.plan.uses[op.result] == 1 and op.result not in e.plan.stores and op.result.dtype is float32
    if not (alone and (held.op, alu) == ("multiply", "add") and not isinstance(operand, float)):
        return False
    if reader is None or len(reader.operands) < 2 or e.part.splat(reader.operands[1]) != 0.0:
        return False
    if reader.name == "compare" and _marks_select(e, reader):
        tile = e.marks(reader)
    elif reader.name == "maximum":
        tile = e.dst(reader.result)
    else:
        return False
    e.charge(Engine.SCALAR, tile.free)
    e.b.activation(dst=tile, data=source, op="relu", scale=held.operand, bias=operand)
    e.done.add(reader)
    e.release(op.result)
    e.computed(reader.result)
    return True


def _marks_select(e: Emitter, op: Op) -> bool:
    """Whether a comparison by LE or GT with zero is for one select alone, of a tile and a number (or row value)."""
    reader = e.plan.reader.get(op.result)
    if op.attrs["comparison_direction"] not in ("LE", "GT") or reader is None or reader.name != "select":
        return False
    alone = e.plan.uses[op.result] == 1 and op.result not in e.plan.stores
    pred, on_true, on_false = reader.operands
    return alone and pred is op.result and e.is_wide(reader.result) and e.is_wide(on_true) != e.is_wide(on_false)


def _can_wait(e: Emitter, op: Op) -> bool:
    value = op.result
    reader = e.plan.reader.get(value)
    if e.plan.uses[value] != 1 or value in e.plan.stores:
        return False
    if op.name == "compare" and reader is not None:
        return e.is_wide(reader.result) and is_product(e, reader, value)
    if value.dtype is not float32:
        return False
    foldable = (*ALU, *ACTIVATION, "trn.gelu", "trn.gelu_dx", "compare")
    return reader is not None and reader.name in foldable and e.is_wide(reader.result)


def _tensor_tensor(e: Emitter, op: Op, lhs: Value, rhs: Value, alu: str) -> None:
    x, y = e.get(lhs), e.get(rhs)
    pending = x if isinstance(x, Pending) else y if isinstance(y, Pending) else None
    if pending is None:
        a, c = e.ap(lhs), e.ap(rhs)
        e.tensor_op(e.dst(op.result), a, c, alu)
        return
    data = e.ap(pending.source)
    other = e.ap(rhs if pending is x else lhs)
    if data.memory is Memory.PSUM and other.memory is Memory.PSUM:
        other = e.sbuf(other)
    tile = e.dst(op.result)
    e.charge(Engine.VECTOR, 2 * tile.free)
    e.b.scalar_tensor_tensor(
        dst=tile,
        data=data,
        operand0=pending.operand,
        op0=pending.op,
        reverse0=pending.reverse,
        operand1=other,
        op1=alu,
        reverse1=pending is not x,
    )


def negate(e: Emitter, op: Op) -> None:
    """-x, which a later instruction may take along."""
    _tensor_or_narrow_scalar(e, op, op.operands[0], "multiply", -1.0)


def logical_not(e: Emitter, op: Op) -> None:
    """1 where x is 0."""
    _tensor_or_narrow_scalar(e, op, op.operands[0], "is_equal", 0.0)


def _tensor_or_narrow_scalar(
    e: Emitter, op: Op, value: Value, alu: str, number: float, reverse: bool = False
) -> None:
    if e.is_wide(value):
        _tensor_scalar(e, op, value, alu, number, reverse=reverse)
    else:
        e.scalar_op(e.dst(op.result), e.ap(value), alu, number, reverse)


def power(e: Emitter, op: Op) -> None:
    """x**2 is a square; anything else runs on GpSimd, the one engine with a power operation, tile by tile."""
    base, exponent = (e.get(v) for v in op.operands)
    if isinstance(base, float) and isinstance(exponent, float):
        e.values[op.result] = e.fold(op, base, exponent)
    elif exponent == 2.0:
        activate(e, op, "square")
    else:
        wide = e.is_wide(op.result)
        x, y = (e.sbuf(e.spread(v) if wide else e.ap(v)) for v in op.operands)
        e.tensor_op(e.dst(op.result), x, y, "power")
