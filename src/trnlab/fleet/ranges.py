# SPDX-License-Identifier: Apache-2.0
"""A value between two others: what is known of a figure, with its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedRange:
    """A figure that lies between two others."""

    value: float
    low: float
    high: float
    tag: str = "derived"  # documented, press, derived, recalled or assumed
    source: str = ""  # from where

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value:g} does not lie between {self.low:g} and {self.high:g}")

    def times(self, other: PublishedRange | float) -> PublishedRange:
        """The product, whose ends are those of both; of positive figures."""
        if not isinstance(other, PublishedRange):
            other = PublishedRange(other, other, other)
        return PublishedRange(self.value * other.value, self.low * other.low, self.high * other.high)

    def plus(self, other: PublishedRange | float) -> PublishedRange:
        """The sum."""
        if not isinstance(other, PublishedRange):
            other = PublishedRange(other, other, other)
        return PublishedRange(self.value + other.value, self.low + other.low, self.high + other.high)

    def as_json(self) -> dict[str, float]:
        """value, low and high."""
        return {"value": self.value, "low": self.low, "high": self.high}
