# SPDX-License-Identifier: Apache-2.0
"""Bands of plans and bake-offs: made of plans for published runs, as the command makes them; no run lies outside."""

from __future__ import annotations

from statistics import median

import pytest

from trnlab.chips.catalog import TARGETS
from trnlab.fleet.comparison.contenders import off_by
from trnlab.stacks import OURS, OWN, VENDOR
from trnlab.validation import planned

STACKS = {OURS: lambda row: row.step_s, VENDOR: lambda row: row.vendor_s}


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("row", planned.load(), ids=lambda row: row.name)
def test_what_was_published_lies_in_the_band_of_its_plan(row, stack):
    band = off_by(planned.held(row.target, row.precision, stack)).times(row.batch / STACKS[stack](row))
    assert band.low * 0.999 <= row.measured <= band.high * 1.001


@pytest.mark.parametrize("stack", STACKS)
def test_a_row_is_what_the_command_answers_now(stack):
    row = next(row for row in planned.load() if row.model == "bert-large" and row.batch == 16384)
    found = planned.step_of(row, OWN if stack == OURS else row.stack)
    assert found == pytest.approx(STACKS[stack](row), rel=1e-3)


def test_published_rates_are_nearer_to_the_vendors_stack_than_to_ours():
    """Of all runs, and of those that nothing was fitted to."""
    for rows in (planned.load(), [row for row in planned.load() if row.split == "check"]):
        ours, vendor = (median(abs(row.error(stack)) for row in rows) for stack in STACKS)
        assert vendor < 0.7 * ours


def test_a_chip_with_few_runs_has_the_band_of_all():
    own, few, unknown = (planned.held(name, "bf16") for name in ("trn1.32xlarge", "trn2.48xlarge", "none"))
    rows = [row for row in planned.load() if row.precision == "bf16"]
    assert len(own.errors) == sum(TARGETS[row.target].chip.name == "trn1" for row in rows)
    assert few.errors == unknown.errors == tuple(row.error(OURS) for row in rows)
    assert "of them of Trainium2" in few.runs


def test_formats_have_bands_of_their_own():
    narrow, wide = (set(planned.held("trn1.32xlarge", form).errors) for form in ("fp8", "fp32"))
    assert narrow | wide == {row.error(OURS) for row in planned.load() if row.target == "trn1.32xlarge"}
    assert not narrow & wide
