# SPDX-License-Identifier: Apache-2.0
"""Elements of one of two values, bounds, and casts."""

from __future__ import annotations

import numpy as np

from trnlab.compiler.emitter import Emitter, Pending
from trnlab.graph.ir import Op, Value
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import bool_
from trnlab.program import AP


def select(e: Emitter, op: Op) -> None:
    """Elements of one of two values; numbers and row values need no tile of their own."""
    pred, on_true, on_false = op.operands
    if not e.is_wide(op.result):
        _narrow_select(e, op)
        return
    held = e.get(pred)
    if isinstance(held, Pending):
        _product(e, op, held)
        return
    mask = e.spread(pred)
    if e.is_wide(on_true) and not e.is_wide(on_false):
        data, other = e.ap(on_true), e.narrow_form(on_false)
        e.b.select_reduce(dst=e.dst(op.result), predicate=mask, on_true=data, on_false=other)
    elif e.is_wide(on_false) and not e.is_wide(on_true):
        data, other = e.ap(on_false), e.narrow_form(on_true)
        e.b.select_reduce(dst=e.dst(op.result), predicate=mask, on_true=data, on_false=other, reverse_pred=True)
    else:
        chosen, rest = e.spread(on_true), e.spread(on_false)
        tile = e.dst(op.result)
        e.copy(tile, rest)
        e.b.tensor_copy_predicated(dst=tile, src=_in_format_of(e, tile, chosen), predicate=mask)
    e.charge(Engine.VECTOR, e.frame.cols)


def is_product(e: Emitter, op: Op, pred: Value) -> bool:
    """Whether a select is a comparison times one value per row: that value where `pred` holds, zero elsewhere.

    Such a value that is infinite or NaN makes a NaN of all of its row, not only of where it was selected.
    """
    if op.name != "select" or op.operands[0] is not pred or op.operands[1] is pred:
        return False
    return not e.is_wide(op.operands[1]) and e.part.splat(op.operands[2]) == 0.0


def _product(e: Emitter, op: Op, compared: Pending) -> None:
    """Both operations in one instruction."""
    data, factor = e.ap(compared.source), e.narrow_form(op.operands[1])
    e.charge(Engine.VECTOR, data.free)
    e.b.tensor_scalar(
        dst=e.dst(op.result), data=data, operand0=compared.operand, op0=compared.op, reverse0=compared.reverse,
        operand1=factor, op1="multiply",
    )  # fmt: skip


def _narrow_select(e: Emitter, op: Op) -> None:
    mask, chosen, rest = (e.ap(v) for v in op.operands)
    tile = e.dst(op.result)
    e.b.tensor_copy(dst=tile, src=rest)
    e.b.tensor_copy_predicated(dst=tile, src=_in_format_of(e, tile, chosen), predicate=mask)


def _in_format_of(e: Emitter, tile: AP, source: AP) -> AP:
    if source.dtype is tile.dtype:
        return source
    cast = e.temp(e.wide if tile.free > 1 else e.narrow, tile, tile.dtype)
    e.copy(cast, source)
    return cast


def clamp(e: Emitter, op: Op) -> None:
    """min(max(x, low), high), one instruction when the bounds do not vary along the row."""
    low, value, high = op.operands
    data = e.ap(value)
    if e.is_wide(low) or e.is_wide(high):
        raised = e.temp(e.wide, data)
        e.tensor_op(raised, data, e.spread(low), "max")
        e.tensor_op(e.dst(op.result), raised, e.spread(high), "min")
        return
    bounds = e.narrow_form(low), e.narrow_form(high)
    e.charge(Engine.VECTOR, e.frame.cols)
    e.b.tensor_scalar(dst=e.dst(op.result), data=data, operand0=bounds[0], op0="max", operand1=bounds[1], op1="min")


def convert(e: Emitter, op: Op) -> None:
    """A cast by itself."""
    held = e.get(op.operands[0])
    if isinstance(held, float):
        e.values[op.result] = float(np.array(held, op.result.dtype.numpy))
        return
    source = e.ap(op.operands[0])
    tile = e.dst(op.result)
    source = e.as_wide_as(tile, source)
    if op.result.dtype is bool_:
        e.b.tensor_scalar(dst=tile, data=source, operand0=0.0, op0="not_equal")
    else:
        e.copy(tile, source)
