# SPDX-License-Identifier: Apache-2.0
"""docs/stacks.md shows how far plans of both stacks are off, from what `tools/planned_rows.py` found.

python tests/docs/test_stacks_page.py        # writes the table into the page
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from trnlab import stacks
from trnlab.stacks import NAMES, OURS, VENDOR
from trnlab.validation import inference, planned

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stacks.md"
BLOCK = re.compile(r"(?<=<!-- stacks -->\n).*?(?=<!-- end of stacks -->)", re.DOTALL)


def _lines() -> Iterator[str]:
    yield from _of_rows(planned.load())
    yield "\nForward passes and decoding steps, on Inferentia2 (`tools/inference_rows.py`):\n"
    yield from _of_rows(inference.load())


def _of_rows(rows: Sequence[planned.MeasuredRate]) -> Iterator[str]:
    yield "| run | split | measured, a second | the vendor's stack | ours |"
    yield "|---|---|---|---|---|"
    for row in rows:
        errors = " | ".join(f"{row.error(stack):+.1%}" for stack in (VENDOR, OURS))
        yield f"| {row.name} | {row.split} | {row.measured:,.5g} | {errors} |"
    yield ""
    for stack in (VENDOR, OURS):
        for split in ("calibration", "check"):
            errors = [row.error(stack) for row in rows if row.split == split]
            yield f"- {stack}, {split}: {planned.summary(errors)}"


def _table() -> str:
    return "\n".join(_lines()) + "\n"


def test_the_page_shows_what_was_found():
    found = BLOCK.search(PAGE.read_text("utf-8"))
    assert found is not None
    assert found[0] == _table()


def test_the_page_names_every_choice():
    text = PAGE.read_text("utf-8")
    for choice in stacks.choices():
        assert f"| `{choice.name}` |" in text
    assert set(NAMES) == {OURS, VENDOR}


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(lambda _: _table(), PAGE.read_text("utf-8")), "utf-8")
