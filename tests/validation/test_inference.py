# SPDX-License-Identifier: Apache-2.0
"""Published inference: rows are what trnlab says now, `trnlab validate` leads with them, each kind has a band."""

from __future__ import annotations

import json

import pytest

from trnlab.cli.main import main
from trnlab.stacks import NAMES, OURS, OWN, VENDOR
from trnlab.validation import inference


@pytest.mark.parametrize("stack", NAMES)
def test_a_row_is_what_programs_take_now(stack):
    row = next(row for row in inference.load() if row.model == "vit-base")
    found = inference.step_of(row, OWN if stack == OURS else row.stack)
    assert found == pytest.approx(row.step_s if stack == OURS else row.vendor_s, rel=1e-3)


def test_rates_are_of_all_copies():
    row = next(row for row in inference.load() if row.copies == 2)
    assert row.rate(OURS) == pytest.approx(2 * row.batch / row.step_s)
    assert row.error(OURS) == pytest.approx(row.rate(OURS) / row.measured - 1)


def test_the_smaller_model_has_fewer_layers():
    row = next(row for row in inference.load() if row.layers)
    assert row.known.layers == row.layers < 12
    assert not row.known.types


def test_encoders_and_decoders_have_bands_of_their_own():
    encoders, decoders = (inference.held(decodes, VENDOR) for decodes in (False, True))
    assert len(encoders.errors) + len(decoders.errors) == len(inference.load())
    assert "decoding steps" in decoders.runs
    assert "forward passes" in encoders.runs


def test_validate_leads_with_training_and_inference(capsys):
    assert main(["validate", "--only", "batch"]) == 0
    said = capsys.readouterr().out
    assert said.index("training runs, as published") < said.index("inference, as published")
    assert main(["validate", "--only", "inference", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["inference"]
    assert [row["run"] for row in rows] == [row.name for row in inference.load()]
    assert {row["split"] for row in rows} == {"calibration", "check"}
