# SPDX-License-Identifier: Apache-2.0
"""Instructions that several cores execute together: barriers, exchanges, collectives.

Each core's stream holds its own side. `program.gang` finds out which sides meet; whoever executes the gang stops each
core there until all have come, and hands to `meaning` what came from the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from trnlab.isa.base import Array, Arrays, Instruction


class CorePlace(NamedTuple):
    """Which core: of which rank, and which of the rank's cores."""

    rank: int
    core: int

    def __str__(self) -> str:
        return f"core {self.core} of rank {self.rank}" if self.rank else f"core {self.core}"


@dataclass(frozen=True)
class MeetingSide:
    """A core's side of a meeting: attributes, and of each operand its partitions, elements per partition, format."""

    attrs: Mapping[str, Any]
    operands: Mapping[str, tuple[int, int, str]]

    def describe(self, operand: str) -> str:
        """An operand for people."""
        partitions, free, fmt = self.operands[operand]
        return f"{operand} {fmt} [{partitions}, {free}]"


class Meeting(Instruction):
    """An instruction that waits for the same instruction on other cores.

    moves_bits: it gets its operands as they are in memory, where other instructions get floats widened to float32.
    asynchronous: its engine only triggers it and goes on; what uses the operands afterwards waits for all sides.
    """

    moves_bits: ClassVar[bool] = True
    asynchronous: ClassVar[bool] = False

    def places(self, attrs: Mapping[str, Any], here: CorePlace) -> frozenset[CorePlace]:
        """All that take part, `here` included where it does; empty when nobody is waited for."""
        raise NotImplementedError

    def key(self, attrs: Mapping[str, Any]) -> object:
        """What the sides must have in common to be sides of one meeting."""
        return tuple(sorted(attrs.items()))

    def disagreement(self, sides: Mapping[CorePlace, MeetingSide]) -> tuple[CorePlace, CorePlace, str, str] | None:
        """Two places whose sides do not fit together, and what is wrong with each; None when all fit."""
        return None

    def received(
        self, here: CorePlace, sides: Mapping[CorePlace, Arrays], attrs: Mapping[str, Any]
    ) -> dict[str, Array]:
        """What `meaning` needs from the others, beside the operands of its own side."""
        return {}
