# SPDX-License-Identifier: Apache-2.0
"""Elements of one of two values, and bounds."""

from __future__ import annotations

from math import inf

from trnlab.compiler.emission.emitter import Emitter, Pending
from trnlab.graph.ir import Op, Value
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import float32
from trnlab.program import AP


def select(e: Emitter, op: Op) -> None:
    """Elements of one of two values; numbers and row values need no tile of their own."""
    pred, on_true, on_false = op.operands
    if not e.is_wide(op.result):
        select_bits(e, op)
        return
    held = e.get(pred)
    if isinstance(held, Pending):
        _product(e, op, held)
        return
    mask, inverted = e.spread(pred), e.inverted.get(pred, False)
    if e.is_wide(on_true) and not e.is_wide(on_false):
        data, other = e.ap(on_true), e.narrow_form(on_false)
        e.b.select_reduce(dst=e.dst(op.result), predicate=mask, on_true=data, on_false=other, reverse_pred=inverted)
    elif e.is_wide(on_false) and not e.is_wide(on_true):
        data, other = e.ap(on_false), e.narrow_form(on_true)
        reverse = not inverted
        e.b.select_reduce(dst=e.dst(op.result), predicate=mask, on_true=data, on_false=other, reverse_pred=reverse)
    elif repr(e.part.splat(on_false)) == "0.0" and op.result.dtype is float32:
        zeros, other = e.loader.constant(0.0, e.frame.rows).with_dims((0, e.frame.cols)), e.narrow_form(on_true)
        reverse = not inverted
        e.b.select_reduce(dst=e.dst(op.result), predicate=mask, on_true=zeros, on_false=other, reverse_pred=reverse)
    else:
        select_bits(e, op)
        return
    e.charge(Engine.VECTOR, 2 * e.frame.cols)


def select_bits(e: Emitter, op: Op) -> None:
    """One value, and the elements of the other copied over it: as they are, in any format."""
    mask, chosen, rest = (e.ap(v) for v in op.operands)
    tile = e.dst(op.result)
    mask, chosen, rest = (e.as_wide_as(tile, x) for x in (mask, chosen, rest))
    e.copy(tile, rest)
    e.charge_vector(tile)
    e.b.tensor_copy_predicated(dst=tile, src=_in_format_of(e, tile, chosen), predicate=mask)


def is_product(e: Emitter, op: Op, pred: Value) -> bool:
    """Whether a select is a comparison times a number: that number where `pred` holds, zero elsewhere.

    Only of positive, finite numbers is a product with 0 the zero that the select gives.
    """
    if op.name != "select" or op.operands[0] is not pred or e.part.splat(op.operands[2]) != 0.0:
        return False
    number = e.part.splat(op.operands[1])
    return number is not None and 0 < number < inf and repr(e.part.splat(op.operands[2])) == "0.0"


def _product(e: Emitter, op: Op, compared: Pending) -> None:
    """Both operations in one instruction."""
    data, factor = e.ap(compared.source), e.narrow_form(op.operands[1])
    e.charge(Engine.VECTOR, data.free)
    e.b.tensor_scalar(
        dst=e.dst(op.result),
        data=data,
        operand0=compared.operand,
        op0=compared.op,
        reverse0=compared.reverse,
        operand1=factor,
        op1="multiply",
    )


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
    tile = e.dst(op.result)
    data = e.as_wide_as(tile, data)
    if e.is_wide(low) or e.is_wide(high):
        raised = e.temp(e.wide, data)
        e.tensor_op(raised, data, e.spread(low), "max")
        e.tensor_op(tile, raised, e.spread(high), "min")
        return
    bounds = e.narrow_form(low), e.narrow_form(high)
    e.charge(Engine.VECTOR, tile.free // (4 if e.is_quick(data, tile) else 1))
    e.b.tensor_scalar(dst=tile, data=data, operand0=bounds[0], op0="max", operand1=bounds[1], op1="min")
