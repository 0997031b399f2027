# SPDX-License-Identifier: Apache-2.0
"""Reductions along a row, whole or in chunks, and over rows."""

from __future__ import annotations

from trnlab.compiler.emitter import Emitter
from trnlab.compiler.groups import Class
from trnlab.graph.ir import Op
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import float32
from trnlab.program import AP


def reduce(e: Emitter, op: Op) -> None:
    """Along the row on Vector; over rows on the PE array, which sums partitions by multiplying with ones."""
    data = e.spread(op.operands[0])
    if e.group.classes[op.result] is Class.FINAL:
        e.loader.column_sum(op.result, data, e.frame)
        return
    tile = row_sum(e, op)
    if (
        op.attrs["kind"] == "add"
        and data.dtype is float32
        and data.free > 1
        and e.lighter(data.free) is Engine.SCALAR
    ):
        e.b.activation(dst=e.temp(e.wide, data), data=data, op="copy", reduce_res=tile)
        combine(e, op, tile)
        return
    e.charge(Engine.VECTOR, data.free)
    alu = {"add": "add", "maximum": "max", "minimum": "min", "multiply": "multiply", "and": "min", "or": "max"}
    e.b.tensor_reduce(dst=tile, data=data, op=alu[op.attrs["kind"]], axes=1)
    combine(e, op, tile)


def row_sum(e: Emitter, op: Op) -> AP:
    """Where the sum over this sweep's columns goes: the result itself when they are all there are."""
    if e.frame.whole_row:
        return e.dst(op.result)
    return e.narrow.take(e.frame.rows, 1, op.result.dtype)


def combine(e: Emitter, op: Op, part: AP) -> None:
    """Add the sum over this sweep's columns to that of the columns before."""
    if e.frame.whole_row:
        return
    alu = {"add": "add", "maximum": "max", "minimum": "min", "multiply": "multiply"}[op.attrs["kind"]]
    if e.frame.first_cols:
        e.rows[op.result] = e.narrow.take(e.frame.rows, 1, op.result.dtype)
        e.b.tensor_copy(dst=e.rows[op.result], src=part)
    else:
        total = e.rows[op.result]
        assert isinstance(total, AP)
        e.b.tensor_tensor(dst=total, data1=total, data2=part, op=alu)
    e.narrow.give(part)
