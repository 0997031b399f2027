# SPDX-License-Identifier: Apache-2.0
"""How far the chip's result of one op may be from its definition, element by element, given the chip's own operands.

Moves, choices, comparisons, extremes, signs and roundings give the same numbers. Sums, differences, products of two
numbers are rounded once, as the definition says. Quotients and functions have units in the last place. Long sums have
the rounding of each addition, relative to the sum of magnitudes: what cancels is not judged by what is left, but an
element is judged by what went into it, not by the largest of its tensor.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from compiled import same, ulps

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.ir import Graph, Op
from trnlab.numerics.dtypes import bfloat16, float16, float32

Array = np.ndarray[Any, Any]
QUOTIENT, FUNCTION = 5.0, 16.0  # ulp in float32; docs/functions.md has the figures, of divisors of known sign, too
FUNCTIONS = frozenset(
    {
        "exponential",
        "exponential_minus_one",
        "log",
        "log_plus_one",
        "sqrt",
        "rsqrt",
        "tanh",
        "logistic",
        "erf",
        "atan",
        "sine",
        "cosine",
        "power",
    }
)
HALF = {float32: 2.0**-24, bfloat16: 2.0**-9, float16: 2.0**-12}  # the error of one rounding, relative
LEAST = {float32: 2.0**-149, bfloat16: 2.0**-133, float16: 2.0**-24}
MOST = {float32: 3.4028e38, bfloat16: 3.3895e38, float16: 65504.0}


def faults(op: Op, operands: list[Array], got: Array) -> str | None:
    """What is wrong with the result of an op, if anything."""
    alone = _alone(op)
    (want,) = interpret(alone, operands)
    if op.name in ("dot_general", "scatter") or (op.name == "reduce" and op.attrs["kind"] == "add"):
        wrong = _beyond_sum(op, alone, operands, got)
    elif op.name == "divide" or op.name in FUNCTIONS:
        (exact,) = interpret(alone, operands, "float64")
        most = QUOTIENT if op.name == "divide" else FUNCTION
        narrow = op.result.dtype is not float32
        wrong = ulps(got, _as(op, exact), op.result.dtype) > (1.0 if narrow else most)
    else:
        wrong = np.array([not same(g, w) for g, w in zip(np.ravel(got), np.ravel(want))]).reshape(want.shape)
        if op.name in ("maximum", "minimum", "clamp") or op.name == "reduce":
            wrong &= ~((got == 0) & (want == 0))  # which of two zeros is the larger, nobody says
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    read = [x[at] for x in operands if x.shape == got.shape]
    return (
        f"{op.name} {op.result.type} at {at}: {got[at]!r} for {want[at]!r}, of {read}; {wrong.sum()} of {wrong.size}"
    )


def _alone(op: Op) -> Graph:
    b = GraphBuilder(op.name)
    given = [b.input(f"x{i}", v.shape, v.dtype) for i, v in enumerate(op.operands)]
    b.output(b.append(op.name, given, dict(op.attrs)).results[0])
    return b.build()


def _as(op: Op, exact: Array) -> Array:
    """The exact result in the range of its format."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(op.result.dtype.numpy).astype(np.float64)
    return np.where(np.isfinite(rounded) & np.isfinite(exact), exact, rounded)


def _beyond_sum(op: Op, alone: Graph, operands: list[Array], got: Array) -> Array:
    """Sums: infinities and NaN where the definition has them; elsewhere within the rounding of all additions.

    Where the magnitudes add up to more than the format holds, a partial sum may overflow in one order and not in
    another: there is nothing to say.
    """
    (exact,) = interpret(alone, operands, "float64")
    with np.errstate(all="ignore"):
        sizes = [np.where(np.isfinite(x), np.abs(x.astype(np.float64)), 0.0) if _is_float(x) else x for x in operands]
        finite = [np.where(np.isfinite(x), x, 0).astype(x.dtype) if _is_float(x) else x for x in operands]
        (magnitude,) = interpret(alone, [s.astype(f.dtype) for s, f in zip(sizes, finite)], "float64")
        known = np.asarray(magnitude) < 0.99 * min(MOST[op.result.dtype], MOST[float32])
        got = np.asarray(got).astype(np.float64)
        count = _count(op)
        dtype = op.result.dtype
        bound = (2.0**-23 * (count + 2) + HALF[dtype]) * magnitude + LEAST[dtype] + count * 2.0**-149
        apart = np.where(np.isfinite(exact), ~(np.abs(got - exact) <= bound), ~_alike(got, exact))
    return known & apart


def _alike(got: Array, want: Array) -> Array:
    return (got == want) | (np.isnan(got) & np.isnan(want))


def _is_float(x: Array) -> bool:
    return x.dtype.kind not in "iub"


def _count(op: Op) -> int:
    x = op.operands[0]
    if op.name == "reduce":
        return prod(x.shape[d] for d in op.attrs["dimensions"])
    if op.name == "scatter":
        return op.operands[1].type.size
    return prod(x.shape[d] for d in op.attrs["lhs_contracting_dimensions"])
