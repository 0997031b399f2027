# SPDX-License-Identifier: Apache-2.0
"""How far a right kernel's result may lie from the exact one, element by element, from the formats it computes in.

The reference is evaluated in float64: that is the exact result. It is evaluated again with every operand moved by the
unit roundoff u of a format, up or down at random: how far the result moves says how much rounding in that format is
worth in this problem, at this place, for these values. A kernel may be off by (`verify.bounds`)

    u(format of the result) |exact|  +  16 u(float32) |exact|         functions of the engines
    + 4 sqrt(n) moved(float32)                                        sums in float32; n: the longest dimension
    + 8 moved(f)                                                      operands and tiles in a narrower format f
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from trnlab.bench.hostile import is_float
from trnlab.bench.problem import flat
from trnlab.numerics.dtypes import BY_CODE
from trnlab.program.routine import COL, Program
from trnlab.verify.bounds import COMPOSITE, FLOAT32, FUNCTION, largest, roundoff, smallest

NARROW_STEPS = 8.0  # roundings to a narrow format that one element's value may go through one after the other
SAMPLES = 2  # times that operands are moved
Array = np.ndarray[Any, Any]
Reference = Callable[..., Any]


@dataclass(frozen=True)
class Exact:
    """What is right in a case."""

    value: Array  # float64
    moved: dict[str, Array]  # by format: how far its u moves each element

    def bound(self, result: str, narrow: str | None) -> Array:
        """How far a result in a format may be off. narrow: the narrowest format it was computed in, if one is."""
        size = np.abs(self.value)
        n = max(self.value.shape, default=1)
        found = (roundoff(result) + FUNCTION.factor * roundoff(FLOAT32)) * size
        found = found + COMPOSITE.factor * sqrt(n) * self.moved[FLOAT32]
        if narrow is not None:
            found = found + NARROW_STEPS * self.moved[narrow]
        bound: Array = found + smallest(result)
        return bound


def exact(
    reference: Reference, given: Sequence[Any], formats: Sequence[str], rng: np.random.Generator
) -> list[Exact]:
    """What is right for these inputs. formats: those that some candidate computes in. Raises what the reference
    raises in float64."""
    wide = [_wide(value) for value in given]
    values = [np.asarray(v, np.float64) for v in flat(reference(*wide))]
    moved: list[dict[str, Array]] = [{} for _ in values]
    for name in dict.fromkeys((FLOAT32, *formats)):
        for sample in range(SAMPLES):
            others = flat(reference(*[_moved(value, roundoff(name), rng) for value in wide]))
            for into, value, other in zip(moved, values, others, strict=True):
                with np.errstate(all="ignore"):
                    step = np.abs(np.asarray(other, np.float64) - value)
                into[name] = np.maximum(into[name], step) if sample else step
    return [Exact(value, {name: _smooth(step) for name, step in of.items()}) for value, of in zip(values, moved)]


def comparable(expected: Sequence[Exact], form: str) -> bool:
    """Whether all that is right is finite and can be said in a format."""
    return all(np.isfinite(e.value).all() and (np.abs(e.value) <= largest(form)).all() for e in expected)


def narrowest(program: Program, allowed: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """The narrowest float format that a kernel computes in, float32 aside, and all such formats. allowed: only these
    count for the first."""
    found: set[str] = set()
    for routine in program.routines:
        codes = np.unique(routine.operands[:, COL["dtype"]]).tolist()
        found |= {BY_CODE[c].name for c in codes if c in BY_CODE and BY_CODE[c].name.startswith(("float", "bfloat"))}
    narrow = sorted((f for f in found if roundoff(f) > roundoff(FLOAT32)), key=roundoff)
    counted = [f for f in narrow if f in allowed]
    return (counted[-1] if counted else None), tuple(narrow)


def _wide(value: Any) -> Any:
    """Floats as float64, of the same framework."""
    if isinstance(value, np.ndarray):
        return value.astype(np.float64) if is_float(value) else value
    if hasattr(value, "double") and hasattr(value, "is_floating_point"):
        return value.double() if value.is_floating_point() else value
    return value


def _moved(value: Any, u: float, rng: np.random.Generator) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype != np.float64:
            return value
        return value * (1 + u * rng.choice((-1.0, 1.0), value.shape))
    if hasattr(value, "is_floating_point") and value.is_floating_point():
        return value * (1 + u * value.new_tensor(rng.choice((-1.0, 1.0), tuple(value.shape))))
    return value


def _smooth(step: Array) -> Array:
    """At least the mean over the last dimension: that one element did not move by chance says nothing."""
    if not step.ndim or not step.size:
        return step
    with np.errstate(all="ignore"):
        found: Array = np.maximum(step, step.mean(axis=-1, keepdims=True))
    return found
