# SPDX-License-Identifier: Apache-2.0
"""Instructions of two kinds recorded in turns, so that engines which wait for one have the other to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Step = Callable[[], object]
"""Records some instructions."""


def interleave(first: Sequence[Step], second: Sequence[Step]) -> None:
    """Record both, each in its order, spread evenly: the PE array multiplies while others copy what it transposed."""
    done = 0
    for i, step in enumerate(first):
        step()
        due = len(second) * (i + 1) // len(first)
        for other in second[done:due]:
            other()
        done = due
    for other in second[done:]:
        other()
