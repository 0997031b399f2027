# SPDX-License-Identifier: Apache-2.0
"""Sums of products, each of numbers that a row has and of whole rows: what rows are normalised with and what their
gradients are made of.

Whatever the order in which a framework multiplies, adds and sums up, the same mathematics is the same terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from trnlab.graph.ir import Value

_MOST_TERMS = 12
_CANCELLED = 1e-6  # of the larger of two terms: what is left is the rounding of constants

Factors = frozenset[tuple["Symbol", int]]


class Total(NamedTuple):
    """The sum along a row of a product of rows."""

    of: Factors


Symbol = Value | Total | str


class Term(NamedTuple):
    """A product of symbols with their powers: `row` of numbers, one for each row, `full` of elements."""

    row: Factors = frozenset()
    full: Factors = frozenset()


Terms = Mapping[Term, float]


def symbol(name: Symbol, *, full: bool) -> Terms:
    """One symbol by itself."""
    factors: Factors = frozenset({(name, 1)})
    return {Term(full=factors) if full else Term(row=factors): 1.0}


def plus(a: Terms, b: Terms, sign: float = 1.0) -> Terms | None:
    """a + sign * b, or None where that is long; what cancels is gone."""
    found = dict(a)
    for term, factor in b.items():
        before = found.pop(term, 0.0)
        total = before + sign * factor
        if abs(total) > _CANCELLED * max(abs(before), abs(factor)):
            found[term] = total
    return found if len(found) <= _MOST_TERMS else None


def times(a: Terms, b: Terms) -> Terms | None:
    """The product, or None where it is long."""
    found: Terms | None = {}
    for p, m in a.items():
        for q, n in b.items():
            together = Term(joined(p.row, q.row), joined(p.full, q.full))
            found = plus(found, {together: m * n}) if found is not None else None
    return found


def inverse(a: Terms) -> Terms | None:
    """1 / a of a single product of numbers of rows."""
    if len(a) != 1:
        return None
    ((term, factor),) = a.items()
    if term.full or not factor:
        return None
    return {Term(frozenset((s, -power) for s, power in term.row)): 1 / factor}


def summed(a: Terms, count: int, vanishes: Factors) -> Terms | None:
    """The sum along rows of `count` elements; that of `vanishes` is zero."""
    found: Terms | None = {}
    for term, factor in a.items():
        if term.full == vanishes or found is None:
            continue
        more = frozenset({(Total(term.full), 1)}) if term.full else frozenset()
        found = plus(found, {Term(joined(term.row, more)): factor if term.full else factor * count})
    return found


def joined(a: Factors, b: Factors) -> Factors:
    """The product of two products."""
    powers: dict[Symbol, int] = dict(a)
    for name, power in b:
        powers[name] = powers.get(name, 0) + power
    return frozenset((name, power) for name, power in powers.items() if power)


def values_of(factors: Iterable[tuple[Symbol, int]]) -> list[Value] | None:
    """The values that a product multiplies, or None where it holds anything else."""
    found: list[Value] = []
    for name, power in factors:
        if not isinstance(name, Value) or power < 1:
            return None
        found += [name] * power
    return found
