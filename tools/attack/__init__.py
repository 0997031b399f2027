# SPDX-License-Identifier: Apache-2.0
"""Attacks of the project's own on what docs/trust.md promises; `python -m tools.attack` does all of them.

Each attack is a function of a number of inputs and a seed that returns an `Outcome`: what happened, counted by name,
and what should not have.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What happened, by name, and what should not have."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def words(self) -> str:
        """The counts in a line."""
        return ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
