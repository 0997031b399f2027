# SPDX-License-Identifier: Apache-2.0
"""Loops of the old dialect: nl.affine_range, nl.sequential_range and nl.static_range.

They run while recording. The vendor's compiler looks at the body of the first two only once, so that what a body does
to Python's own variables happens once there: a kernel that counts addresses up within a body means the same addresses
in every iteration. `once_per_body` tells such a place what it made in the first one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, TypeVar

from trnlab.lang.recorder import current, recording

Made = TypeVar("Made")
_OURS = __name__.rsplit(".", 1)[0]


class LoopRange:
    """A range whose iterations the recorder knows of. independent: they may run in any order."""

    def __init__(self, bounds: tuple[Any, ...], independent: bool) -> None:
        self.values, self.independent = range(*(int(b) for b in bounds)), independent

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, at: int) -> int:
        return self.values[at]

    def __iter__(self) -> Iterator[int]:
        if not recording():
            yield from self.values
            return
        turns: list[int] = current().once("iterations of the loops around", list)
        depth = len(turns)
        turns.append(0)
        try:
            for turn, value in enumerate(self._spans()):
                turns[depth:] = [turn]
                yield value
        finally:
            del turns[depth:]

    def _spans(self) -> Iterator[int]:
        return current().independent(self.values) if self.independent else iter(self.values)


def affine_range(*bounds: Any, precise_schedule: bool = False, **_: Any) -> LoopRange:
    """range(), with iterations declared independent but for sums.

    precise_schedule: instructions keep the order in which they are written, as loops that pipeline by hand need.
    """
    return LoopRange(bounds, independent=not precise_schedule)


def sequential_range(*bounds: Any, **_: Any) -> LoopRange:
    """range(), with iterations in order."""
    return LoopRange(bounds, independent=False)


def static_range(*bounds: Any, **_: Any) -> range:
    """range(), a loop that the vendor's compiler unrolls, too."""
    return range(*(int(b) for b in bounds))


def once_per_body(make: Callable[[], Made]) -> Made:
    """What make() made at this place of the kernel when the loops around it were in their first iterations."""
    if not recording():
        return make()
    site = _site()
    known: dict[Any, Made] = current().once("made by the bodies of loops", dict)
    if not any(current().once("iterations of the loops around", list)) or site not in known:
        known[site] = make()
    return known[site]


def _site() -> tuple[tuple[CodeType, int], ...]:
    """Where the kernel is: the calls that lead here, without our own."""
    site, frame = [], sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != "trnlab.nki.kernel":
        if not frame.f_globals.get("__name__", "").startswith(_OURS):
            site.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(site)
