# SPDX-License-Identifier: Apache-2.0
"""Elementwise values as polynomials in one value x, functions of it, and at most one other value as a factor.

Whatever the order in which a framework multiplies and adds, the same mathematics is the same polynomial.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from trnlab.graph.ir import Op, Value
from trnlab.graph.passes.rewrite import splat
from trnlab.numerics.dtypes import bfloat16, float32

_MOST_TERMS = 40
FORMATS = (float32, bfloat16)
_ARITHMETIC = ("add", "subtract", "multiply", "negate", "convert", "power", "divide")


class Powers(NamedTuple):
    """x^x f^f h^h times another value, if any; f and h are functions of x."""

    x: int = 0
    f: int = 0
    h: int = 0
    other: Value | None = None


Polynomial = dict[Powers, float]
ONE: Polynomial = {Powers(): 1.0}


def plus(a: Polynomial, b: Polynomial, sign: float = 1.0) -> Polynomial:
    """a + sign * b; what cancels is gone."""
    found = dict(a)
    for powers, factor in b.items():
        total = found.get(powers, 0.0) + sign * factor
        size = max(abs(found.get(powers, 0.0)), abs(factor))
        if abs(total) > 1e-6 * size:
            found[powers] = total
        else:
            found.pop(powers, None)
    return found


def times(a: Polynomial, b: Polynomial) -> Polynomial | None:
    """The product, or None where two other values meet, or where it is long."""
    found: Polynomial = {}
    for p, m in a.items():
        for q, n in b.items():
            if p.other is not None and q.other is not None:
                return None
            found = plus(found, {Powers(p.x + q.x, p.f + q.f, p.h + q.h, p.other or q.other): m * n})
    return found if len(found) <= _MOST_TERMS else None


def close(found: Polynomial, wanted: Mapping[Powers, float], tolerance: float) -> bool:
    """Whether two polynomials are the same but for the rounding of their coefficients."""
    return found.keys() == wanted.keys() and all(math.isclose(found[p], wanted[p], rel_tol=tolerance) for p in wanted)


def ratio(found: Polynomial, wanted: Mapping[Powers, float], tolerance: float) -> tuple[float, Value | None] | None:
    """(factor, other) where `found` is factor * other * wanted."""
    others = {p.other for p in found}
    if len(others) != 1 or not found:
        return None
    plain = {p._replace(other=None): c for p, c in found.items()}
    if plain.keys() != wanted.keys():
        return None
    factor = next(plain[p] / wanted[p] for p in wanted)
    scaled = {p: factor * c for p, c in wanted.items()}
    return (factor, others.pop()) if math.isfinite(factor) and factor and close(plain, scaled, tolerance) else None


class PolynomialReader:
    """Reads values as polynomials in `x`; functions: what stands for f and h, by the op that makes it.

    Anything else is opaque: another value, without the numbers that it is multiplied by.
    """

    def __init__(self, x: Value, functions: Mapping[Op, int]) -> None:
        self.x, self._functions = x, functions
        self._found: dict[Value, Polynomial] = {x: {Powers(1): 1.0}}
        self.scaled: dict[tuple[Value, float], Value] = {}

    def read(self, value: Value, depth: int = 40) -> Polynomial:
        """The polynomial that a value is."""
        if value not in self._found:
            found = self._read(value, depth) if depth else None
            self._found[value] = self._opaque(value) if found is None else found
        return self._found[value]

    def _opaque(self, value: Value) -> Polynomial:
        factor, root = 1.0, value
        while (step := _scaling(root)) is not None:
            number, root = step
            factor *= number
        self.scaled.setdefault((root, factor), value)
        self.scaled.setdefault((root, 1.0), root)
        return {Powers(other=root): factor}

    def _read(self, value: Value, depth: int) -> Polynomial | None:
        op = value.op
        number = splat(value)
        if number is not None and value.dtype in FORMATS and math.isfinite(number):
            return {Powers(): float(number)} if number else {}
        if op is None or value.dtype not in FORMATS:
            return None
        if op in self._functions:
            return {Powers(f=1) if self._functions[op] == 0 else Powers(h=1): 1.0}
        if op.name == "convert":
            return self.read(op.operands[0], depth - 1) if op.operands[0].dtype in FORMATS else None
        if op.name == "negate":
            return plus({}, self.read(op.operands[0], depth - 1), -1.0)
        if op.name in ("add", "subtract", "multiply"):
            return self._combined(op, depth)
        if op.name in ("divide", "power"):
            number = splat(op.operands[1])
            base = self.read(op.operands[0], depth - 1)
            if op.name == "divide":
                return times(base, {Powers(): 1 / number}) if number else None
            return times(times(base, base) or {}, base) if number == 3 and base else None
        return None

    def _combined(self, op: Op, depth: int) -> Polynomial | None:
        a, b = (self.read(v, depth - 1) for v in op.operands)
        if op.name == "multiply":
            return times(a, b)
        return plus(a, b, 1.0 if op.name == "add" else -1.0)


def _scaling(value: Value) -> tuple[float, Value] | None:
    """(number, source) of a value that is a number times another one."""
    op = value.op
    if op is None:
        return None
    if op.name == "negate":
        return -1.0, op.operands[0]
    if op.name == "multiply":
        for i in (0, 1):
            number = splat(op.operands[i])
            if number and math.isfinite(number):
                return float(number), op.operands[1 - i]
    return None


def sources(value: Value, most: int = 24) -> Iterator[Value]:
    """The values that a value is computed from by arithmetic, the nearest first."""
    pending: list[Value] = [value]
    seen: set[Value] = set()
    while pending and len(seen) < most:
        value = pending.pop(0)
        if value in seen or splat(value) is not None:
            continue
        seen.add(value)
        yield value
        if value.op is not None and value.op.name in _ARITHMETIC:
            pending.extend(value.op.operands)
