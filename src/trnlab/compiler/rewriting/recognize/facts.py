# SPDX-License-Identifier: Apache-2.0
"""What is known of a value within attention, and how elementwise ops and reductions carry it on.

The scores are the product of queries and keys, after some `ScoreStep`s. Everything beyond their exponential is a
`Terms`: a sum of products of powers of four symbols,

    e  exp(scores - their largest), per query and key       z  the sum of e, per query
    g  the product of the incoming gradient and the values   d  the sum of e g, per query

so that whatever way a framework writes the softmax and its gradient, the same mathematics is the same `Terms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trnlab.compiler.rewriting.recognize.axes import Dims, narrow, resolved
from trnlab.graph.ir import Op, Value
from trnlab.graph.passes.rewrite import splat
from trnlab.numerics.dtypes import bfloat16, float32

HIDDEN = -5e8  # scores that low are hidden: beside any other, their exponential is zero
FORMATS = (float32, bfloat16)


@dataclass(frozen=True)
class ScoreStep:
    """One op on the way from the product to the scores."""

    # "scale" (by `number`), "add" (`value`, `number` times), or "hide" (`number` where `value`, a truth value, is
    # not `visible`)
    kind: str
    number: float
    value: Value | None = None
    visible: bool = True
    dims: Dims = field(default=(), compare=False)  # what the dimensions of `value` stand for


Steps = tuple[ScoreStep, ...]
Powers = tuple[int, int, int, int]  # of e, z, g, d


@dataclass(frozen=True)
class Scores:
    """Scores after some steps."""

    steps: Steps


@dataclass(frozen=True)
class Highest:
    """The largest score of each query; where that is minus infinity, perhaps another number. finite: whether it is
    one."""

    steps: Steps
    finite: bool = False


@dataclass(frozen=True)
class Test:
    """Whether the largest score is finite (or, not `holds`, whether it is not), but for NaN and infinity."""

    steps: Steps
    holds: bool


@dataclass(frozen=True)
class Shifted:
    """Scores less the largest."""

    steps: Steps


@dataclass(frozen=True)
class Terms:
    """A sum of products."""

    steps: Steps
    sum: dict[Powers, float]
    gradient: Op | None = None  # the op that makes g
    masked: bool = False  # whether it is zero where a score is hidden


Fact = Scores | Highest | Test | Shifted | Terms


def same_terms(found: Terms, wanted: dict[Powers, float]) -> float | None:
    """The factor by which `found` is `wanted`, or None."""
    if found.sum.keys() != wanted.keys():
        return None
    factors = [found.sum[key] / wanted[key] for key in wanted]
    near = all(math.isclose(f, factors[0], rel_tol=1e-5) for f in factors)
    return factors[0] if near and factors[0] != 0 and math.isfinite(factors[0]) else None


PROBABILITIES: dict[Powers, float] = {(1, -1, 0, 0): 1.0}
GRADIENT: dict[Powers, float] = {(1, -1, 1, 0): 1.0, (1, -2, 0, 1): -1.0}


# -- reductions -----------------------------------------------------------------------------------------------------


def summed(fact: Terms) -> Terms | None:
    """The sum over keys."""
    found: dict[Powers, float] = {}
    for (e, z, g, d), factor in fact.sum.items():
        if e != 1 or g not in (0, 1):
            return None
        _put(found, (0, z, 0, d + 1) if g else (0, z + 1, 0, d), factor)
    return replace(fact, sum=found, masked=False)


# -- elementwise ops ------------------------------------------------------------------------------------------------


def follow(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    """What is known of the result of an elementwise op; None where that is nothing.

    facts, dims: of the operands; those of which nothing is known are constants or come from outside.
    """
    rule = _RULES.get(op.name)
    return rule(op, facts, dims) if rule is not None else None


def _put(terms: dict[Powers, float], powers: Powers, factor: float) -> None:
    terms[powers] = terms.get(powers, 0.0) + factor
    if terms[powers] == 0.0:
        del terms[powers]


def _joined(one: Terms, other: Terms, terms: dict[Powers, float], masked: bool) -> Terms | None:
    gradients = {x.gradient for x in (one, other) if x.gradient is not None}
    if one.steps != other.steps or len(gradients) > 1 or not terms:
        return None
    return Terms(one.steps, terms, next(iter(gradients), None), masked)


def _product(one: Terms, other: Terms) -> Terms | None:
    terms: dict[Powers, float] = {}
    for p, f in one.sum.items():
        for q, h in other.sum.items():
            _put(terms, (p[0] + q[0], p[1] + q[1], p[2] + q[2], p[3] + q[3]), f * h)
    return _joined(one, other, terms, one.masked or other.masked)


def _power(fact: Terms, n: int) -> Terms | None:
    if len(fact.sum) != 1:
        return None
    (((e, z, g, d), factor),) = fact.sum.items()
    return None if factor == 0 else replace(fact, sum={(e * n, z * n, g * n, d * n): factor**n})


def _scaled(fact: Fact, number: float) -> Fact | None:
    if not math.isfinite(number) or number == 0:
        return None
    if isinstance(fact, Terms):
        return replace(fact, sum={p: f * number for p, f in fact.sum.items()})
    if isinstance(fact, Scores) and all(step.kind == "scale" for step in fact.steps):
        return Scores((*fact.steps, ScoreStep("scale", number)))
    return None


def _number(value: Value) -> float | None:
    found = splat(value)
    return None if found is None or isinstance(found, bool) else float(found)


def _multiply(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    one, other = facts
    if isinstance(one, Terms) and isinstance(other, Terms):
        return _product(one, other)
    for fact, value in ((one, op.operands[1]), (other, op.operands[0])):
        number = _number(value)
        if fact is not None and number is not None:
            return _scaled(fact, number)
    return None


def _divide(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    one, other = facts
    if isinstance(other, Terms):
        inverse = _power(other, -1)
        if inverse is None:
            return None
        if isinstance(one, Terms):
            return _product(one, inverse)
        number = _number(op.operands[0])
        return None if number is None else _scaled(inverse, number)
    number = _number(op.operands[1])
    return _scaled(one, 1 / number) if one is not None and number else None


def _raise(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    number = _number(op.operands[1])
    whole = number is not None and number.is_integer() and 0 < abs(number) < 8
    return _power(facts[0], int(number or 0)) if whole and isinstance(facts[0], Terms) else None


def _sum(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    sign = 1.0 if op.name == "add" else -1.0
    one, other = facts
    if isinstance(one, Terms) and isinstance(other, Terms):
        terms = dict(one.sum)
        for powers, factor in other.sum.items():
            _put(terms, powers, sign * factor)
        return _joined(one, other, terms, one.masked and other.masked)
    if isinstance(one, Scores) and isinstance(other, Highest):
        return Shifted(one.steps) if sign < 0 and one.steps == other.steps else None
    for i, fact in enumerate(facts):
        if isinstance(fact, Scores) and facts[1 - i] is None and (i == 0 or sign > 0):
            added = op.operands[1 - i]
            value, own, _ = narrow(added, dims[i] or ())
            return Scores((*fact.steps, ScoreStep("add", sign, value, True, own))) if added.dtype in FORMATS else None
    return None


def _negate(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    return _scaled(facts[0], -1.0) if isinstance(facts[0], Terms) else None


def _exponential(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    return Terms(facts[0].steps, {(1, 0, 0, 0): 1.0}) if isinstance(facts[0], Shifted) else None


def _convert(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    return facts[0] if op.result.dtype in FORMATS and not isinstance(facts[0], Test) else None


def _maximum(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    """The largest score, or a very low number where that is even lower."""
    for fact, value in ((facts[0], op.operands[1]), (facts[1], op.operands[0])):
        number = _number(value)
        if isinstance(fact, Highest) and number is not None and number <= -1e30:
            return replace(fact, finite=fact.finite or number > -math.inf)
    return None


def _is_finite(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    return Test(facts[0].steps, True) if isinstance(facts[0], Highest) else None


def _compare(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    """The largest score against minus infinity."""
    direction = op.attrs["comparison_direction"]
    low = isinstance(facts[0], Highest) and _number(op.operands[1]) == -math.inf
    if not low or direction not in ("EQ", "NE", "GT") or not isinstance(facts[0], Highest):
        return None
    return Test(facts[0].steps, direction != "EQ")


def _not(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    return replace(facts[0], holds=not facts[0].holds) if isinstance(facts[0], Test) else None


def _select(op: Op, facts: Sequence[Fact | None], dims: Sequence[Dims | None]) -> Fact | None:
    """Scores hidden by a mask; gradients of hidden scores; the largest score where that is finite, else a number."""
    test, *_ = facts
    for i in (1, 2):
        fact, number = facts[i], _number(op.operands[3 - i])
        if fact is None or number is None or facts[3 - i] is not None:
            continue
        if isinstance(test, Test):
            right = math.isfinite(number) and test.steps == fact.steps and test.holds == (i == 1)
            return replace(fact, finite=True) if right and isinstance(fact, Highest) else None
        mask, own, negated = narrow(op.operands[0], dims[i] or ())
        visible = (i == 1) != negated
        if test is None and isinstance(fact, Scores) and number <= HIDDEN:
            return Scores((*fact.steps, ScoreStep("hide", number, mask, visible, own)))
        if test is None and isinstance(fact, Terms) and number == 0 and all(p[0] > 0 for p in fact.sum):
            hides = [step for step in fact.steps if step.kind == "hide"]
            same = [s for s in hides if s.value is mask and s.visible == visible and resolved(s.dims) == own]
            return replace(fact, masked=fact.masked or len(hides) == 1) if same else None
    return None


_RULES: dict[str, Callable[[Op, Sequence[Any], Sequence[Dims | None]], Fact | None]] = {
    "multiply": _multiply,
    "divide": _divide,
    "power": _raise,
    "add": _sum,
    "subtract": _sum,
    "negate": _negate,
    "exponential": _exponential,
    "convert": _convert,
    "maximum": _maximum,
    "is_finite": _is_finite,
    "compare": _compare,
    "not": _not,
    "select": _select,
}
