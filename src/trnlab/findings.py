# SPDX-License-Identifier: Apache-2.0
"""Findings: what stands in the way of a program, or is to be known of it, with the line of the user's code."""

from __future__ import annotations

from dataclasses import dataclass, field

from trnlab.errors import Location

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)


@dataclass(frozen=True)
class UserLine:
    """A line of the user's code; `layer` is the path of the module in the model that it belongs to."""

    file: str = ""
    line: int = 0
    function: str = ""
    text: str = ""
    layer: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""

    @classmethod
    def of(cls, where: Location | None) -> UserLine:
        """The same place as an error has it."""
        if where is None:
            return cls()
        return cls(where.file, where.line, where.function, where.text.strip(), where.layer)


@dataclass
class Finding:
    """Something in the way, or to know of."""

    code: str
    # "error" (it does not run as it is), "warning" (it runs, not as meant), "note" (the vendor's software treats
    # it otherwise)
    severity: str
    what: str
    place: UserLine
    why: str = ""
    do: str = ""
    subject: str = ""  # the operator or setting that it is about
    places: list[UserLine] = field(default_factory=list)  # where else, the first apart
