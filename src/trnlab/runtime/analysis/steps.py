# SPDX-License-Identifier: Apache-2.0
"""Training steps in a sequence of executions, where the script does not say where they end."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_STEP = 2_000  # executions; a longer one is not looked for


def ends_of_repetition(sequence: Sequence[str]) -> list[int]:
    """The places where repetitions of the shortest period end; empty when the sequence does not repeat itself.

    The sequence ends with whole repetitions, at least two, that make up more than half of it. What comes before
    them (a warm-up, an evaluation) ends where the first of them begins.
    """
    for period in range(1, min(len(sequence) // 2, LONGEST_STEP) + 1):
        same = _repeats(sequence, period)
        if same >= 2 and same * period * 2 > len(sequence):
            first = len(sequence) - same * period
            return [*([first] if first else []), *range(first + period, len(sequence) + 1, period)]
    return []


def _repeats(sequence: Sequence[str], period: int) -> int:
    """How many times the last `period` items stand one after the other at the end."""
    same = period
    while same < len(sequence) and sequence[-same - 1] == sequence[-same - 1 + period]:
        same += 1
    return same // period
