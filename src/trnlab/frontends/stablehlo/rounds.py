# SPDX-License-Identifier: Apache-2.0
"""How often a loop goes round that only data can end: counted, told now and then, and stopped.

Such a loop may never end, by a mistake in its condition or by a NaN. Silence would tell nobody.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from trnlab.errors import Location, RunError, UsageError
from trnlab.runtime.notices import say

VARIABLE = "TRNLAB_MOST_ROUNDS"
MOST_ROUNDS = 1_000_000
FIRST_TOLD = 1000  # rounds; then at ten times as many, and so on
_LIMIT, _TOLD = "TRN511", "TRN512"


def most_rounds(environment: Mapping[str, str] = os.environ) -> int | None:
    """Rounds after which a loop is stopped, None for never: what TRNLAB_MOST_ROUNDS says.

    Raises UsageError (TRN511) for what is neither a number nor "none".
    """
    told = environment.get(VARIABLE, str(MOST_ROUNDS))
    if told == "none":
        return None
    if not told.isdecimal() or int(told) == 0:
        raise UsageError(
            f"{VARIABLE} is no number of rounds",
            code=_LIMIT,
            limit="a whole number from 1 on, or none",
            got=told,
            remedy=f"set it to such as {MOST_ROUNDS}, to none, or unset it",
        )
    return int(told)


class RoundCounter:
    """Counts the rounds of one loop, each time that it runs. A number of rounds is told once, not at each run."""

    def __init__(self, where: Location | None) -> None:
        self.where = where
        self._told = FIRST_TOLD
        self._most: int | None = None
        self.done = 0

    def begin(self) -> None:
        """The loop runs."""
        self.done, self._most = 0, most_rounds()

    def next(self) -> None:
        """The condition holds: one more round. Raises RunError (TRN511) where no more are allowed."""
        if self.done == self._most:
            raise RunError(
                f"a loop has gone round {self.done:,} times, and its condition still holds",
                code=_LIMIT,
                where=self.where,
                limit=f"{self._most:,} rounds ({VARIABLE})",
                remedy="see whether the condition can become false, also when its numbers are NaN; for more rounds, "
                f"set {VARIABLE} to a larger number, or to none",
            )
        if self.done == self._told:
            at = f" at {self.where}" if self.where else ""
            end = "it is never stopped" if self._most is None else f"it is stopped after {self._most:,}"
            say(f"{_TOLD}: the loop{at} has gone round {self.done:,} times and goes on; {end}")
            self._told *= 10
        self.done += 1
