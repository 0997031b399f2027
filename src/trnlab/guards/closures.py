# SPDX-License-Identifier: Apache-2.0
"""The functions that have a piece of code, for the state in their closures.

Python knows the code of a function, and not the functions of a code: they are found among all objects of the process.
Two looks at these cost as much as a table of all closures, and a step whose model comes from a library has hundreds.
"""

from __future__ import annotations

import gc
import sys
from types import CodeType, FunctionType


class Closures:
    """Functions with closures by their code, while a piece of the user's code runs for the first time.

    The table is made anew when modules were imported since. What else makes functions meanwhile is code that is being
    watched: those are no state of before.
    """

    def __init__(self) -> None:
        self._asked = self._modules = 0
        self._table: dict[int, list[FunctionType]] = {}

    def of(self, code: CodeType) -> list[FunctionType]:
        """All functions that have this code."""
        self._asked += 1
        if self._asked == 1:
            found = gc.get_referrers(code)
            return [f for f in found if isinstance(f, FunctionType) and f.__code__ is code]
        if self._modules != len(sys.modules):
            self._modules, self._table = len(sys.modules), _closures()
        return self._table.get(id(code), [])

    def forget(self) -> None:
        """Let go of the functions."""
        self._asked = self._modules = 0
        self._table = {}


def _closures() -> dict[int, list[FunctionType]]:
    table: dict[int, list[FunctionType]] = {}
    for function in [found for found in gc.get_objects() if type(found) is FunctionType]:
        if function.__closure__:
            table.setdefault(id(function.__code__), []).append(function)
    return table
