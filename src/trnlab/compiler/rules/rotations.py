# SPDX-License-Identifier: Apache-2.0
"""Rotary positions: halves of rows, or neighbours in them, exchanged in a tile, one of them negated."""

from __future__ import annotations

from trnlab.compiler.emission.emitter import Emitter
from trnlab.graph.ir import Op
from trnlab.isa.base import Engine
from trnlab.program import AP


def rotate_half(e: Emitter, op: Op) -> None:
    """(a, b) of each row, or of each pair in it, to (-b, a), by an instruction for each half of all rows that lie
    side by side in a tile; and zeros behind them where that is not the whole row."""
    x, tile = e.spread(op.operands[0]), e.dst(op.result)
    if len(x.dims) > 1:  # no stretch of elements that could be cut in another way
        plain = e.temp(e.wide, tile, x.dtype)
        e.copy(plain, x)
        x = plain
    size = op.result.shape[-1]
    assert e.frame.cols % size == e.frame.col % size == 0, f"rows of {size} in columns of {e.frame}"
    data, out = (each.split(0, tile.free // size, size) for each in (x, tile))
    width = op.attrs["width"] or size
    (low, high), (first, second) = (_halves(each[:, :, :width], width, op.attrs["pairs"]) for each in (out, data))
    e.scalar_op(low, second, "multiply", -1.0, reverse=False)
    e.copy(high, first)
    if width < size:
        e.b.memset(dst=out[:, :, width:], value=0.0, engine=Engine.GPSIMD)


def _halves(rows: AP, width: int, pairs: bool) -> tuple[AP, AP]:
    """What is exchanged."""
    if pairs:
        each = rows.split(1, width // 2, 2)
        return each[:, :, :, 0], each[:, :, :, 1]
    return rows[:, :, : width // 2], rows[:, :, width // 2 :]
