# SPDX-License-Identifier: Apache-2.0
"""docs/verify.md: its example runs and prints what it shows, and its table of bounds is that of the source.

python tests/docs/test_verify_page.py        # writes both into the page
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from tutorial_pages import blocks, run

from trnlab.verify.bounds import table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verify.md"
_BOUNDS = re.compile(r"(<!-- bounds -->\n).*?(<!-- end of bounds -->)", re.DOTALL)
_SECONDS = re.compile(r"in \d+ s")


def rows() -> str:
    """The table of bounds in Markdown."""
    lines = ["| kind | c | scale | operators |", "|---|---|---|---|"]
    lines += [f"| {kind} | {c} | {scale.replace('|', '&#124;')} | {names} |" for kind, c, scale, names in table()]
    return "\n".join(lines) + "\n"


def _words(text: str) -> list[str]:
    """The text without how large errors and losses are, which another form of some op may change a little."""
    first, *rest = text.split("in graph order")
    return [first, *(re.sub(r"-?\d[\d,.e-]*", "#", part) for part in rest)]


def printed(folder: Path) -> list[str]:
    """What the blocks that show something print."""
    found = [(block, _SECONDS.sub("in 3 s", text)) for block, text in run(PAGE, folder)]
    return [text for block, text in found if block.shown is not None]


@pytest.mark.torch
def test_the_example_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.delenv("TRNLAB_TARGET", raising=False)
    monkeypatch.setenv("TRNLAB_CACHE", str(tmp_path / "cache"))
    text = PAGE.read_text()
    shown = [text[slice(*b.shown)] for b in blocks(text) if b.shown is not None]
    assert [_words(s) for s in shown] == [_words(p) for p in printed(tmp_path)]


def test_the_table_of_bounds_is_that_of_the_source():
    assert _BOUNDS.search(PAGE.read_text())[0] == f"<!-- bounds -->\n{rows()}<!-- end of bounds -->"


def update() -> None:
    """Write the table and the output into the page."""
    text = PAGE.read_text()
    with tempfile.TemporaryDirectory() as folder:
        for block, shown in reversed(list(zip([b for b in blocks(text) if b.shown], printed(Path(folder))))):
            text = text[: block.shown[0]] + shown + text[block.shown[1] :]
    PAGE.write_text(_BOUNDS.sub(lambda m: m[1] + rows() + m[2], text))


if __name__ == "__main__":
    update()
