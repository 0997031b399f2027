# SPDX-License-Identifier: Apache-2.0
"""Rotary positions: halves of rows exchanged in a tile, one of them negated."""

from __future__ import annotations

from trnlab.compiler.emission.emitter import Emitter
from trnlab.graph.ir import Op


def rotate_half(e: Emitter, op: Op) -> None:
    """(a, b) of each row to (-b, a), by an instruction for each half of all rows that lie side by side in a tile."""
    x, tile = e.spread(op.operands[0]), e.dst(op.result)
    if len(x.dims) > 1:  # no stretch of elements that could be cut in another way
        plain = e.temp(e.wide, tile, x.dtype)
        e.copy(plain, x)
        x = plain
    size = op.result.shape[-1]
    assert e.frame.cols % size == e.frame.col % size == 0, f"rows of {size} in columns of {e.frame}"
    data, out = (each.split(0, tile.free // size, size) for each in (x, tile))
    e.scalar_op(out[:, :, : size // 2], data[:, :, size // 2 :], "multiply", -1.0, reverse=False)
    e.copy(out[:, :, size // 2 :], data[:, :, : size // 2])
