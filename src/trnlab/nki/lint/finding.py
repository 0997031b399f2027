# SPDX-License-Identifier: Apache-2.0
"""What `lint` finds: a place, a code, a sentence, a way out, and where the rule comes from."""

from __future__ import annotations

from dataclasses import dataclass

from trnlab.errors import LintError, Location

ERROR, WARNING = "error", "warning"


@dataclass(frozen=True, order=True)
class LintFinding:
    """One thing that the vendor's compiler would refuse (error), or may refuse or will one day (warning).

    line and column count from one.
    """

    file: str
    line: int
    column: int
    code: str
    severity: str
    what: str
    remedy: str
    source: str  # who says so
    function: str = ""  # the kernel, or the function that a kernel calls
    text: str = ""
    times: int = 1  # how often it is found in the file, this being the first place

    def __str__(self) -> str:
        often = "" if self.times == 1 else f" ({self.times} times)"
        place = f"{self.file}:{self.line}:{self.column}"
        return f"{place}: {self.severity} {self.code}: {self.what}{often}; {self.remedy}"

    def error(self) -> LintError:
        """The same as an exception."""
        where = Location(self.file, self.line, self.function, self.text)
        return LintError(
            self.what, code=self.code, where=where, limit=self.source, remedy=f"{self.remedy} (check: lint)"
        )
