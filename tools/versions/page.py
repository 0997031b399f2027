# SPDX-License-Identifier: Apache-2.0
"""The table of docs/versions.md: a row for each package, Python and case, of the last time that it was tried."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import NamedTuple

from tools.versions.cases import ROOT

PAGE = ROOT / "docs" / "versions.md"
_BEGIN = "<!-- rows: python -m tools.versions -->"
_HEAD = "| what | Python | case | | on |\n|---|---|---|---|---|"


class Row(NamedTuple):
    """What was tried, and what came of it."""

    what: str
    python: str
    case: str
    said: str
    on: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What is tried again is the same row."""
        return self[:3]

    def line(self) -> str:
        """As it stands in the page."""
        return f"| {' | '.join(self)} |"


def row(what: str, python: str, case: str, passed: bool, said: str) -> Row:
    """Of an outcome, today."""
    text = said.replace("|", "\\|") if passed else f"**fails**: {said.replace('|', '/')}"
    short = case.removeprefix("tests/")
    return Row(what, python, f"`{short}`" if short != case else short, text or "passes", date.today().isoformat())


def rows(page: Path = PAGE) -> list[Row]:
    """Those that the page has."""
    _, _, table = page.read_text().partition(_BEGIN)
    lines = [line for line in table.split("\n\n")[0].splitlines() if line.startswith("| ")][1:]
    return [Row(*line.strip("| ").split(" | ")) for line in lines]


def _order(each: Row) -> tuple[str, list[int]]:
    """By package, its release and the Python."""
    return re.sub(r"[\d. ]+$", "", each.what), [int(n) for n in re.findall(r"\d+", f"{each.what} {each.python}")]


def write(new: list[Row], page: Path = PAGE) -> None:
    """Put rows into the page: in the place of those of the same, or behind all of the same release and Python."""
    found = {old.key: old for old in rows(page)} | {each.key: each for each in new}
    ordered = sorted(found.values(), key=_order)
    before, mark, after = page.read_text().partition(_BEGIN)
    rest = after.lstrip("\n").partition("\n\n")[2]
    table = "\n".join((_HEAD, *(each.line() for each in ordered)))
    page.write_text(f"{before}{mark}\n{table}\n\n{rest}")
