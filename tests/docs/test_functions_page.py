# SPDX-License-Identifier: Apache-2.0
"""docs/functions.md says what is measured: the same rows, and figures that are nowhere worse than it says.

NumPy takes functions of its own or the C library's by what the processor has, and its own are off by up to 1.4 ulp
more. The page was measured with those, so that another machine may find smaller errors.
"""

from __future__ import annotations

import pytest
from functions_page import FUNCTIONS, MARK, PAGE, bounds, table

pytestmark = pytest.mark.torch
COLUMNS, MEASURED = 10, (2, 3, 5, 6)
OFF = 0.35  # ulp: the interpreter and the references are NumPy's and PyTorch's, which differ between machines


def cells(text: str) -> list[list[str]]:
    """The rows of the table, cut into cells; a bar within a cell is escaped."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[c.strip() for c in line.replace("\\|", "\0").strip("|").split("|")] for line in lines]


def shown():
    """The rows of the page."""
    text = PAGE.read_text()
    return cells(text[text.index(MARK) :])


def test_the_page_has_every_function():
    """What is not measured is what the table of functions says."""
    rows = shown()[1:]
    assert [row[0].replace("\0", "|") for row in rows] == [f.name for f in FUNCTIONS]
    assert [row[9].replace("\0", "|") for row in rows] == [f.method for f in FUNCTIONS]
    assert [row[1] for row in rows] == [bounds(f)[0] for f in FUNCTIONS]
    assert [row[4] for row in rows] == [bounds(f)[1] for f in FUNCTIONS]


@pytest.mark.slow
def test_the_page_is_current():
    """After a change: python tests/docs/functions_page.py."""
    found = cells(table())
    assert [row[0] for row in shown()] == [row[0] for row in found]
    for old, new in zip(shown()[1:], found[1:]):
        assert len(old) == len(new) == COLUMNS
        for i, (a, b) in enumerate(zip(old, new)):
            if i in MEASURED and a != b:
                assert float(b) - float(a) <= OFF * max(1.0, float(a) / 4), (new[0], a, b)
            elif i == 8:
                assert abs(float(a) - float(b)) <= max(0.1 * float(a), 0.2), (new[0], a, b)
            elif i not in MEASURED:
                assert a == b, new[0]
