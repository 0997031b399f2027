# SPDX-License-Identifier: Apache-2.0
"""A verdict that a band leaves open says so, and names the measured run that would close it."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import pytest

from tests.fleet.test_bakeoffs import TRN1, bakeoff
from trnlab import documents
from trnlab.fleet.comparison import deciding
from trnlab.fleet.comparison.bakeoff import to_json
from trnlab.fleet.comparison.contenders import PlanAccuracy, RunToMeasure
from trnlab.fleet.models.configurations import from_config
from trnlab.fleet.planning.plan import plan
from trnlab.fleet.planning.question import Question
from trnlab.fleet.report.bakeoff_document import document as bakeoff_document
from trnlab.fleet.report.document import document
from trnlab.fleet.search.layout import pinned
from trnlab.units import SECONDS_PER_DAY
from trnlab.validation import mine

RUN = RunToMeasure("bert-large", "trn1.32xlarge", 2, 4096, 128, "tp=1,pp=1,mb=16", "bf16")
SIZES = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}
HELD = PlanAccuracy((-0.2, 0.25), "two runs")


def test_the_line_is_one_that_validate_reads(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(deciding.toml(RUN).replace("SECONDS", "12.5"))
    (row,) = mine.read(file)
    assert (row.model, row.target, row.instances, row.batch) == ("bert-large", "trn1.32xlarge", 2, 4096)
    assert (row.sequence, row.layout, row.precision) == (128, "tp=1,pp=1,mb=16", "bf16")
    assert row.measured == pytest.approx(4096 / 12.5)


def test_an_undecided_bakeoff_says_what_to_measure_and_a_decided_one_nothing():
    even = _even(bakeoff().b)
    for rate, left_open in ((even, True), (even.times(100), False)):
        found = bakeoff(a=replace(TRN1, measure=RUN, rate=rate))
        (ratio,) = to_json(found)["ratios"]
        assert ratio["undecided"] is left_open
        assert bool(to_json(found)["would_decide"]) is left_open
        text = documents.text(bakeoff_document(found))
        assert (deciding.toml(RUN) in text) is left_open
        assert ("undecided" in text) is left_open


def _even(other):
    """A rate of the first side at which a unit costs as much as on the other."""
    ((_, first, second, _),) = bakeoff().ratios()
    cost = first.usd_per_hour * TRN1.instances / (second.usd_per_hour * other.instances)
    return TRN1.rate.times(other.rate.value * cost / TRN1.rate.value)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    layout = pinned("tp=2,mb=1,recompute=none")
    asked = Question(from_config(SIZES, "small"), 1e9, ("trn1.32xlarge",), (1, 1), batch=64, fixed=layout)
    return plan(asked, tmp_path_factory.mktemp("plans"))


@pytest.mark.parametrize(("share", "verdict"), [(1.01, "open"), (1.2, "open"), (1.3, "kept")])
def test_a_deadline_within_the_band_is_open(planned, share, verdict):
    """The rate is 0.8 to 1.25 times the plan's: 1.25 to 0.8 times its days."""
    days = planned.chosen.bill.days
    found = _with_deadline(planned, days * share * SECONDS_PER_DAY)
    said = document(found, (), HELD)
    band = said.record()["band"]
    assert band["days"] == pytest.approx({"value": days, "low": days * 0.8, "high": days * 1.25})
    assert band["usd"]["high"] == pytest.approx(found.chosen.bill.usd * 1.25)
    assert band["deadline"] == verdict
    text = documents.text(said)
    assert ("step_s = SECONDS" in text) == (verdict == "open") == (band["would_decide"] is not None)
    assert f"{days * 0.8:,.3g} to {days * 1.25:,.3g} days" in text


def _with_deadline(found, seconds):
    """The same plan, as one of a question with a deadline would be shown."""
    other = copy(found)
    other.question = replace(found.question, deadline=seconds)
    return other


def test_no_deadline_is_no_verdict(planned):
    band = document(planned, (), HELD).record()["band"]
    assert (band["deadline"], band["would_decide"]) == (None, None)
    assert "all instances" in documents.text(document(planned, (), HELD))


def test_what_is_measured_of_a_script_is_no_line(planned):
    assert deciding.of_plan(planned) is not None
    other = copy(planned)
    other.question = replace(planned.question, captured=object())
    assert deciding.of_plan(other) is None
    assert deciding.as_json(None) is None
