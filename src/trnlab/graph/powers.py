# SPDX-License-Identifier: Apache-2.0
"""Differences between one and a power close to it: the bias corrections 1 - beta^t of Adam and its kin.

In float32 the power is rounded at one part in 2^24 of one, and the base before it: of 1 - 0.999^t little more than
four digits are left in the first steps. exp(t log(beta)) - 1 keeps all of them.
"""

from __future__ import annotations

import math
from itertools import permutations

from trnlab.graph import formulas
from trnlab.graph.builder import GraphBuilder, Number
from trnlab.graph.ir import Op, Value
from trnlab.graph.passes.rewrite import made_by, splat
from trnlab.numerics.dtypes import float32


def beside_one(b: GraphBuilder, name: str, x: Value | Number, y: Value | Number) -> Value | None:
    """x + y or x - y (name: "add" or "subtract") when that is base^t - 1 or 1 - base^t for one t, in float32.

    By the base as it was written, where `b` still knows that. None for anything else.
    """
    sign = -1 if name == "subtract" else 1
    for (value, factor), (other, its_factor) in permutations([(x, 1), (y, sign)]):
        power, of_power = _signed_power(value)
        base, number = None if power is None else _base(b, power), _number(other)
        if power is None or base is None or number is None:
            continue
        if (factor * of_power, its_factor * number) in ((1, -1), (-1, 1)):
            less = formulas.power_less_one(b, base, power.operands[1])
            return less if factor * of_power == 1 else b.negate(less)
    return None


def _signed_power(x: Value | Number) -> tuple[Op | None, int]:
    """The power of one exponent that a value is, or is the negative of, and its sign."""
    if not isinstance(x, Value) or x.dtype is not float32 or x.type.size != 1:
        return None, 1
    negated = made_by(x, "negate")
    return (made_by(x, "power"), 1) if negated is None else (made_by(negated.operands[0], "power"), -1)


def _base(b: GraphBuilder, power: Op) -> float | None:
    """The number above zero that is raised; infinity times log(1) would not be a number."""
    constant = power.operands[0]
    base = splat(constant)
    if base is None:
        return None
    base = b.unrounded.get(constant, float(base))
    return base if 0 < base != 1 and math.isfinite(base) else None


def _number(x: Value | Number) -> float | None:
    number = splat(x) if isinstance(x, Value) else x
    return None if number is None else float(number)
