# SPDX-License-Identifier: Apache-2.0
"""Why a result differs, as far as the numbers show it, and what to do about it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trnlab.verify.bounds import roundoff, smallest
from trnlab.verify.compare import Worst, overflows

OVERFLOW, BORN, UNDERFLOW = "overflow", "NaN or infinity born here", "underflow"
CANCELLATION, INSIDE, NARROW, WRONG = "cancellation", "cancellation within the op", "narrow format", "wrong op"
AMPLIFICATION, LOSS = 1000.0, 0.01  # a cancellation: errors of the operands grow so much, to at least that

REMEDIES = {
    OVERFLOW: "keep these numbers in a format with a wider range (bfloat16 or float32), or scale them down before",
    BORN: "look at the operands of this op: they are finite, and its result is not",
    UNDERFLOW: "scale the numbers up before this op (a loss scale does that for gradients), or use a format with a "
    "wider range",
    CANCELLATION: "rewrite it so that no two almost equal numbers are subtracted (centre first, as torch.var does), "
    "or compute it in a wider format",
    INSIDE: "the operator's lowering subtracts almost equal numbers; report it, and use another form until then",
    NARROW: "a step of the operator's lowering keeps fewer bits than its format has; report it",
    WRONG: "the result is not that of this operator; report it with this line",
}


@dataclass(frozen=True)
class Situation:
    """What is known about a difference: the worst element, the format, the largest finite operand (0: unknown)."""

    worst: Worst
    format: str
    operand: float = 0.0
    finite: bool = True  # whether all operands on the chip are
    lost: float = 0.0  # share of the tensor's length that became zero
    # how much larger, relatively, the result's error is than those of its operands, and how large it is
    grown: tuple[float, float] = (0.0, 0.0)


def condition(s: Situation) -> str:
    """The name of the condition that made the difference."""
    got, want = s.worst.chip, s.worst.reference
    if not math.isfinite(got):
        if overflows(want, s.format):
            return OVERFLOW
        return BORN if s.finite else WRONG
    if not math.isfinite(want):
        return WRONG
    if (s.lost > 0 and s.worst.ratio <= 1) or (got == 0 and abs(want) < 4 * smallest(s.format)):
        return UNDERFLOW
    if s.worst.ratio <= 1:
        return CANCELLATION
    error = abs(got - want)
    if error <= 8 * roundoff("float32") * max(1.0, s.operand) and error > 16 * roundoff("float32") * abs(want):
        return INSIDE
    return NARROW if _narrowed(error, want, s.format) else WRONG


def right_bits(error: float, reference: float) -> float:
    """How many leading bits of a number are right."""
    if error == 0:
        return math.inf
    return math.log2(abs(reference) / error) if reference else 0.0


def _narrowed(error: float, reference: float, format: str) -> bool:
    """Whether the error is what rounding to some narrower format makes."""
    return right_bits(error, reference) >= 1.5 and error > roundoff(format) * abs(reference)


def remedy(condition: str) -> str:
    """What to do about a condition."""
    return REMEDIES[condition]
