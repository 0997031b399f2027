# SPDX-License-Identifier: Apache-2.0
"""What docs/goodput.md shows in Python is what it prints."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path

from tutorial_pages import blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "goodput.md"


def test_the_python_of_the_page_prints_what_it_shows():
    text = PAGE.read_text()
    found = blocks(text)
    assert found
    for block in found:
        assert block.shown is not None
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(block.code, str(PAGE), "exec"), {})
        assert printed.getvalue() == text[slice(*block.shown)]
