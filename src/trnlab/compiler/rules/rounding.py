# SPDX-License-Identifier: Apache-2.0
"""Whole numbers near a number: round half to even, floor, ceil. Exact for all floats; NaN, infinities and the sign of
zero stay.

Below 2^23 in magnitude a number plus 2^23, minus 2^23, is rounded to a whole one; from there on every fp32 number is
whole. With c = min(|x|, 2^23) and r = c rounded, |x| - (c - r) is therefore |x| rounded wherever x lies, at infinity
too.
"""

from __future__ import annotations

from trnlab.compiler.emission.emitter import Emitter
from trnlab.compiler.rules.recipes import ResultRecipe, TileRecipe
from trnlab.graph.ir import Op
from trnlab.program import AP

ALL_WHOLE = 2.0**23


def rounding(e: Emitter, op: Op) -> None:
    """The sign goes in last, so that -0.3 rounds up to -0.0 as it does in PyTorch."""
    r = ResultRecipe(e, op)
    data = r.float32(r.operands[0])
    nearest = _nearest(r, data)
    if op.name != "round_nearest_even":
        signed = r.with_sign(nearest, data)
        over = r.pair(signed, "is_gt" if op.name == "floor" else "is_lt", data)
        nearest = r.pair(signed, "subtract" if op.name == "floor" else "add", over)
    r.with_sign(nearest, data, r.out)
    r.done()


def _nearest(r: TileRecipe, data: AP) -> AP:
    """The magnitude, rounded."""
    size = r.function(data, "abs")
    near = r.scalars(size, "min", ALL_WHOLE)
    rounded = r.scalars(near, "add", ALL_WHOLE, "subtract", ALL_WHOLE)
    return r.pair(size, "subtract", r.pair(near, "subtract", rounded))
