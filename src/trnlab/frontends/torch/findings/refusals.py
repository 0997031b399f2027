# SPDX-License-Identifier: Apache-2.0
"""One use of an operator that the chip cannot run."""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.errors import Location


@dataclass(frozen=True)
class UnsupportedOp:
    """One use of an operator that cannot run: its name, what it was given, the user's line, why, and what to do."""

    name: str
    operands: tuple[str, ...]
    where: Location | None
    reason: str
    do: str
    code: str = "TRN201"

    def __str__(self) -> str:
        place = f"\n      at   {self.where}" if self.where else ""
        text = f"\n           {self.where.text}" if self.where and self.where.text else ""
        way_out = f"\n      do   {self.do}" if self.do else ""
        return f"{self.name}({', '.join(self.operands)}){place}{text}\n      why  {self.reason}{way_out}"
