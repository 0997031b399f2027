# SPDX-License-Identifier: Apache-2.0
"""Reductions along a row, whole or in chunks, and over rows."""

from __future__ import annotations

from trnlab.compiler.emission.emitter import Emitter
from trnlab.compiler.fusing.groups import ValueClass
from trnlab.compiler.rules.integers import ARITHMETIC, BITS
from trnlab.graph.ir import Op
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import DType, bfloat16, bool_, float32
from trnlab.program import AP

LOGICAL = {"and": "min", "or": "max"}


def reduce(e: Emitter, op: Op) -> None:
    """Along the row on Vector; over rows on the PE array, which sums partitions by multiplying with ones. Of a
    product's rows, whose columns come in no order, parts are kept until all are there."""
    data = e.spread(op.operands[0])
    if e.group.classes[op.result] is ValueClass.FINAL and op.attrs["kind"] != "add":
        e.charge(Engine.VECTOR, data.free // (2 if data.dtype is bfloat16 else 1))
        e.loader.extremes(op.result, data, e.frame, _alu(op))
        return
    if e.group.classes[op.result] is ValueClass.FINAL:
        e.loader.column_sum(op.result, e.sbuf(data), e.frame)
        return
    tile = row_sum(e, op)
    if op.attrs["kind"] == "add" and data.dtype.is_float and data.free > 1 and e.lighter(data.free) is Engine.SCALAR:
        e.b.activation(dst=e.temp(e.wide, data), data=data, op="copy", reduce_res=tile)
        combine(e, op, tile, Engine.SCALAR)
        return
    e.charge(Engine.VECTOR, data.free // (2 if data.dtype is tile.dtype is bfloat16 else 1))
    e.b.tensor_reduce(dst=tile, data=data, op=_alu(op), axes=1)
    combine(e, op, tile)


def moments(e: Emitter, op: Op) -> None:
    """Statistics of this sweep's columns, to be combined when all rows' columns have been seen."""
    data = e.spread(op.operands[0])
    e.charge(Engine.VECTOR, data.free)
    e.loader.moments(op.result, data, e.frame)


def softmax_statistics(e: Emitter, op: Op) -> None:
    """The largest of this sweep's columns, and the sum of their exponentials, as `moments`."""
    data = e.spread(op.operands[0])
    e.charge(Engine.VECTOR, data.free // (2 if data.dtype is bfloat16 else 1))
    e.charge(Engine.SCALAR, data.free)
    e.loader.softmax_statistics(op.result, data, e.frame)


def sum_of_squares(e: Emitter, op: Op) -> None:
    """The squares of this sweep's columns, added up as `moments` are."""
    data = e.spread(op.operands[0])
    e.charge(Engine.SCALAR, data.free)
    e.loader.sum_of_squares(op.result, data, e.frame)


def _alu(op: Op) -> str:
    """The operator: truth is 0 or 1, of which the smaller is "and"; integers are combined bit by bit."""
    kind = op.attrs["kind"]
    if kind in ("and", "or"):
        return LOGICAL[kind] if op.result.dtype is bool_ else BITS[kind]
    return ARITHMETIC[kind]


def _partial(e: Emitter, op: Op) -> DType:
    """The format of sums of some columns: rounded once, when all are added. The largest need no rounding."""
    exact = op.attrs["kind"] in ("maximum", "minimum") and e.part_sums is None
    return float32 if op.result.dtype.is_float and not exact else op.result.dtype


def row_sum(e: Emitter, op: Op) -> AP:
    """Where the sum over this sweep's columns goes: the result itself when they are all there are."""
    if e.frame.whole_row and e.part_sums is None:
        return e.dst(op.result)
    return e.narrow.take(e.frame.rows, 1, _partial(e, op))


def combine(e: Emitter, op: Op, part: AP, engine: Engine = Engine.VECTOR) -> None:
    """Add the sum over this sweep's columns to that of the columns before; on the engine that made it, which need
    not wait for itself."""
    if e.frame.whole_row:
        if e.part_sums is not None:
            e.part_sums.add(part, e.dst(op.result), _alu(op))
            e.narrow.give(part)
        return
    if e.frame.first_cols:
        e.rows[op.result] = e.narrow.take(e.frame.rows, 1, part.dtype)
        e.b.tensor_copy(dst=e.rows[op.result], src=part)
    else:
        total = e.rows[op.result]
        assert isinstance(total, AP)
        if engine is Engine.SCALAR:
            e.b.activation(dst=total, data=part, op="copy", bias=total)
        else:
            e.tensor_op(total, total, part, _alu(op))
    e.narrow.give(part)
    if e.frame.last_cols:
        _round(e, op)


def _round(e: Emitter, op: Op) -> None:
    """The finished sum, over all parts of the row, in the format of the result."""
    total = e.rows[op.result]
    assert isinstance(total, AP)
    if e.part_sums is not None:
        e.part_sums.add(total, total, _alu(op))
    if total.dtype is not op.result.dtype:
        e.rows[op.result] = e.narrow.take(e.frame.rows, 1, op.result.dtype)
        e.b.tensor_copy(dst=e.rows[op.result], src=total)
        e.narrow.give(total)
