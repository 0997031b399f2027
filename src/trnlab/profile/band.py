# SPDX-License-Identifier: Apache-2.0
"""The band of a predicted time: what it would be if the figures that nobody published were off by a factor of two,
and if the hardware's compiler chose otherwise where nobody knows what it chooses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


def band(
    seconds: float, assumptions: Iterable[Mapping[str, Any]], choices: Iterable[Mapping[str, Any]] = ()
) -> tuple[float, float]:
    """The time with all that is not known off to the fast side, and to the slow side, in seconds.

    assumptions: entries of "assumptions" in a run's summary, the change relative to `seconds` with half and with
    twice of each figure. choices: entries of "choices", the change with another value of an option of the policy; of
    several values of one option the shortest and the longest count. Figures and options count as independent: the
    square root of the sum of the squares, on each side.
    """
    changes = [(a["halved"], a["doubled"]) for a in assumptions]
    by_option: dict[str, list[float]] = {}
    for choice in choices:
        by_option.setdefault(choice["option"], []).append(choice["change"])
    changes += [(min(found), max(found)) for found in by_option.values()]
    faster = math.hypot(*(min(*change, 0.0) for change in changes))
    slower = math.hypot(*(max(*change, 0.0) for change in changes))
    return seconds * max(1 - faster, 0.0), seconds * (1 + slower)
