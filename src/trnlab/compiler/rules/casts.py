# SPDX-License-Identifier: Apache-2.0
"""Casts. An engine rounds to the nearest integer and saturates; PyTorch truncates and wraps."""

from __future__ import annotations

from trnlab.compiler.emission.emitter import Emitter
from trnlab.graph.ir import Op
from trnlab.isa.base import Engine
from trnlab.numerics.dtypes import float32, uint8, uint16, uint32


def _is_number(e: Emitter, op: Op) -> bool:
    """Whether a number was cast, at once."""
    held = e.get(op.operands[0])
    if isinstance(held, float):
        e.values[op.result] = e.fold(op, held)
        return True
    return False


def copy(e: Emitter, op: Op) -> None:
    """A copy casts: between floats, from integers to floats, and between integers that both formats hold."""
    if not _is_number(e, op):
        source = e.ap(op.operands[0])
        tile = e.dst(op.result)
        e.copy(tile, e.as_wide_as(tile, source))


def truth(e: Emitter, op: Op) -> None:
    """Whether it is not zero: NaN and the smallest subnormal are not."""
    if not _is_number(e, op):
        source = e.ap(op.operands[0])
        tile = e.dst(op.result)
        e.charge_vector(tile)
        e.b.tensor_scalar(dst=tile, data=e.as_wide_as(tile, source), operand0=0.0, op0="not_equal")


def reinterpret(e: Emitter, op: Op) -> None:
    """The same 32 bits, read as signed or unsigned."""
    if not _is_number(e, op):
        source = e.ap(op.operands[0])
        tile = e.dst(op.result)
        e.copy(tile, e.as_wide_as(tile, source).cast(tile.dtype))


def bits(e: Emitter, op: Op) -> None:
    """The same bits in another format: moved as unsigned integers, which nothing rounds."""
    if _is_number(e, op):
        return
    source, tile = e.ap(op.operands[0]), e.dst(op.result)
    word = {4: uint32, 2: uint16, 1: uint8}[tile.dtype.itemsize]
    e.copy(tile.cast(word), e.as_wide_as(tile, source).cast(word))


def truncate(e: Emitter, op: Op) -> None:
    """sign(x) times the whole part of |x|: its nearest whole number, less one where that is above it.

    All steps are exact: beyond 2^23 there is no fraction, and what saturates is no more than |x|.
    """
    if _is_number(e, op):
        return
    data = e.ap(op.operands[0])
    tile = e.dst(op.result)
    space = e.wide if tile.free > 1 else e.narrow
    data = e.as_wide_as(tile, data)
    size, over, sign = (e.temp(space, data, float32) for _ in range(3))
    whole = e.temp(space, data, op.result.dtype)
    e.charge(Engine.SCALAR, 2 * tile.free)
    e.b.activation(dst=size, data=data, op="abs")
    e.copy(whole, size)
    e.tensor_op(over, whole, size, "is_gt")
    e.tensor_op(size, whole, over, "subtract")
    e.b.activation(dst=sign, data=data, op="sign")
    e.tensor_op(tile, size, sign, "multiply")
