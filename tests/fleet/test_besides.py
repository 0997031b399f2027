# SPDX-License-Identifier: Apache-2.0
"""What stands beside a plan: others, energy, limits of power; all follow from the plan's figures."""

from __future__ import annotations

import json

import pytest

from trnlab import documents
from trnlab.cli.main import main
from trnlab.errors import UsageError
from trnlab.fleet.bills import energy
from trnlab.fleet.comparison import alternatives as besides
from trnlab.fleet.comparison.contenders import PlanAccuracy
from trnlab.fleet.models.configurations import model
from trnlab.fleet.planning.plan import plan
from trnlab.fleet.planning.question import Question
from trnlab.fleet.report.document import document

SMALL = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 256,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}
LLAMA = Question(model("llama3-8b"), 1e12, ("p5.48xlarge",), (4, 64), batch=1024)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    file = folder / "small.json"
    file.write_text(json.dumps(SMALL))
    return file, folder, plan(Question(model(str(file)), 1e9, ("trn1.2xlarge",), (1, 1), batch=2), folder / "plans")


def test_others_take_the_fewest_instances_that_are_as_fast():
    (slow,) = besides.others(LLAMA, ["p5.48xlarge"], 1e9)
    (fast,) = besides.others(LLAMA, ["p5.48xlarge"], 30.0)
    assert slow.contender.instances == 4
    assert fast.days.value <= 30.0
    assert fast.contender.instances > slow.contender.instances
    assert fast.contender.instances in (8, 16, 32, 64)
    assert besides.others(LLAMA, ["p5.48xlarge"], 1e-9)[0].contender.instances == 64


def test_days_are_tokens_over_rate_and_goodput_and_dollars_follow():
    (other,) = besides.others(LLAMA, ["p5.48xlarge"], 30.0)
    assert other.days.value == pytest.approx(1e12 / other.contender.rate.value / other.goodput / 86400)
    assert other.usd("on-demand").value == pytest.approx(other.days.value * 24 * other.contender.instances * 55.04)
    assert other.usd("spot") is None


def test_a_plan_reports_energy_compiling_claims_and_others(small):
    *_, found = small
    beside = besides.others(found.question, ["p5.4xlarge"], found.chosen.bill.days)
    held = PlanAccuracy((-0.2, 0.25), "two published runs")
    text = documents.text(document(found, beside, held, "eu-north-1"))
    for words in (
        "energy:",
        "eu-north-1",
        "compiling:",
        "claims of the vendor",
        "p5.4xlarge",
        "the plan costs",
        "the rate is 0.80 to 1.25 times the plan's",
        "-20% to +25% in two published runs",
    ):
        assert words in text
    plain = besides.to_json(found, beside, "eu-north-1")
    hours = found.chosen.bill.days * 24
    assert plain["energy"]["kwh"]["value"] == pytest.approx(
        energy.energy("trn1", 1, hours, found.chosen.goodput).total.value
    )
    assert plain["others"][0]["published"] is (plain["others"][0]["days"]["value"] is not None)


def test_power_takes_out_what_draws_more(small):
    *_, found = small
    before = len(found)
    besides.hold(found, energy.full_load("trn1").value * 1.01)
    assert len(found.tables) == 1
    assert before
    with pytest.raises(UsageError, match=r"(?s)TRN178.*--power"):
        besides.hold(found, 1.0)


def test_a_plan_of_others_alone_compiles_nothing(capsys):
    arguments = ["--tokens", "1T", "--target", "p5.48xlarge,tpu-v5p-8", "--instances", "8..64", "--deadline", "60d"]
    assert main(["plan", "llama2-70b", *arguments]) == 0
    text = capsys.readouterr().out
    assert "p5.48xlarge" in text
    assert "maxtext" in text
    assert main(["plan", "llama2-70b", *arguments, "--json"]) == 0
    assert [o["accelerator"] for o in json.loads(capsys.readouterr().out)["others"]] == ["h100", "tpu-v5p"]
