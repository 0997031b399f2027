# SPDX-License-Identifier: Apache-2.0
"""Timelines, runs, plans, documents and tables show themselves in Jupyter."""

from __future__ import annotations

import html
import json
from pathlib import Path

from profile_samples import big_step, really_run

from trnlab import fleet, profile
from trnlab.documents import Document, Note, Table

SMALL = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128}


def test_a_timeline_is_a_page_that_moves() -> None:
    drawn = big_step(1000).timeline._repr_html_()
    assert drawn is not None
    assert drawn.startswith("<iframe srcdoc=")
    page = html.unescape(drawn)
    assert "1,000 instructions" in page
    assert "data-instructions" in page
    assert "Critical path" not in page  # which a timeline alone does not know


def test_a_table_and_a_document_are_pages_that_touch_nothing_else() -> None:
    for made in (Table([("<b>", "2")], ("name", "count")), Document("t", [Note("hello & <b>")])):
        drawn = made._repr_html_()
        assert drawn is not None
        assert drawn.startswith("<iframe srcdoc=")
        assert 'sandbox="allow-scripts"' in drawn
        assert "&lt;b&gt;" in html.unescape(drawn)


def test_a_run_is_its_report(tmp_path: Path) -> None:
    drawn = profile.load(really_run(tmp_path / "run-1"))._repr_html_()
    assert drawn is not None
    assert "data-instructions" in drawn


def test_a_plan_is_its_page(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(SMALL))
    asked = fleet.Question(fleet.model(str(tmp_path / "small.json")), 1e9, ("trn1.2xlarge",), (1, 1), batch=2)
    drawn = fleet.plan(asked)._repr_html_()
    assert drawn is not None
    assert "Cost by kind of price" in drawn
