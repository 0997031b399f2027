# SPDX-License-Identifier: Apache-2.0
"""The table of public kernels in docs/bench.md is that of rows.json; with clones at hand, a part of it is remade.

TRNLAB_KERNEL_CLONES=DIR pytest tests/tools/test_ideas_page.py      # `python -m tools.ideas --fetch-list DIR | sh`
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tools.ideas.__main__ import BEGIN, END, PAGE, ROWS, changed, entries, table

CLONES = os.environ.get("TRNLAB_KERNEL_CLONES")
REMADE = ("Mamba, v2", "matmul, blocked")


def test_the_page_shows_what_was_recorded() -> None:
    shown = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()
    assert shown == table(json.loads(ROWS.read_text())).strip()


def test_the_factor_of_a_row_is_that_of_its_steps() -> None:
    rows = json.loads(ROWS.read_text())
    assert {row["kernel"] for row in rows} == {kernel["name"] for _, kernel in entries()}
    for row in rows:
        product = 1.0
        for _, factor in row["how"]:
            product *= factor
        assert row["before_ps"] / row["after_ps"] == pytest.approx(product, rel=0.01), row["kernel"]


@pytest.mark.skipif(CLONES is None, reason="no clones of the kernels' repositories: TRNLAB_KERNEL_CLONES")
@pytest.mark.parametrize("name", REMADE)
def test_a_part_of_the_table_is_remade(name: str) -> None:
    (row,) = [row for row in json.loads(ROWS.read_text()) if row["kernel"] == name]
    (entry,) = [each for each in entries() if each[1]["name"] == name]
    again = changed(Path(str(CLONES)), *entry)
    assert [again["before_ps"], again["after_ps"]] == pytest.approx([row["before_ps"], row["after_ps"]], rel=0.1)
    assert again["after_ps"] < again["before_ps"]
