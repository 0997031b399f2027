# SPDX-License-Identifier: Apache-2.0
"""A value between two others: what is known of a figure, with its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """value lies between low and high. tag: documented, press, derived, recalled or assumed; source: from where."""

    value: float
    low: float
    high: float
    tag: str = "derived"
    source: str = ""

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value:g} does not lie between {self.low:g} and {self.high:g}")

    def times(self, other: Span | float) -> Span:
        """The product, whose ends are those of both; of positive figures."""
        if not isinstance(other, Span):
            other = Span(other, other, other)
        return Span(self.value * other.value, self.low * other.low, self.high * other.high)

    def plus(self, other: Span | float) -> Span:
        """The sum."""
        if not isinstance(other, Span):
            other = Span(other, other, other)
        return Span(self.value + other.value, self.low + other.low, self.high + other.high)

    def as_json(self) -> dict[str, float]:
        """value, low and high."""
        return {"value": self.value, "low": self.low, "high": self.high}
