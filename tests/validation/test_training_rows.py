# SPDX-License-Identifier: Apache-2.0
"""Published training runs: what is predicted follows from the two estimates that are kept, and rows are checks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trnlab.cli.main import main
from trnlab.fabric.cluster import parse
from trnlab.validation import training

ROWS = training.load()
ROOT = Path(__file__).resolve().parents[2]


def test_rows_are_jobs_that_their_clusters_hold():
    for row in ROWS:
        assert row.ranks == parse(row.target).ranks
        assert row.published
        assert row.without
        assert (row.predicted is not None) == bool(row.model), "an estimate has its day"
        if row.script:
            assert (ROOT / row.script).is_file()
            assert row.global_batch == row.ranks * row.microbatch * row.microbatches


def test_further_microbatches_cost_what_the_second_does():
    row = replace(ROWS[0], ranks=4, global_batch=96, microbatch=3, first_s=2.0, more_s=3.5, measured=6.4)
    assert row.microbatches == 8
    assert row.predicted == pytest.approx(96 / (2.0 + 7 * 1.5))
    assert row.error == pytest.approx(row.predicted / 6.4 - 1)
    assert replace(row, more_s=0.0).predicted is None
    assert replace(row, first_s=0.0).error is None
    assert replace(row, global_batch=12, more_s=0.0).predicted == 6.0


def test_the_command_reports_what_is_estimated_and_what_is_not(capsys):
    assert main(["validate", "--only", "training"]) == 0
    assert f"of {len(ROWS)} rows" in capsys.readouterr().out
    assert main(["validate", "--only", "training", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["training"]
    assert [row["run"] for row in found] == [row.name for row in ROWS]
    assert {row["used_for"] for row in found} == {"check"}
