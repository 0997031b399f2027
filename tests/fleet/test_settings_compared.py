# SPDX-License-Identifier: Apache-2.0
"""Settings side by side: each is a plan of its own, and what it saves repays compiling it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trnlab import documents
from trnlab.cli.main import main
from trnlab.errors import UsageError
from trnlab.fleet import Question, plan
from trnlab.fleet.bills.compilation import minutes
from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.planning.settings import MOST, SearchedSetting, axes, compare
from trnlab.fleet.report.settings_document import document, to_json

SMALL = Model("small", 128, ((2, Block(128, Attention(2, 2, 64, 64), Dense(512))),), 256, 512)
ASKED = Question(SMALL, 1e12, ("trn1.2xlarge",), (1, 1), batch=4, fixed={"microbatch": 1, "overlap": 1})
AXES = axes("precision=fp32:bf16,recompute=full:none")
FILE = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 512,
    "max_position_embeddings": 256,
}


def text(compared):
    return documents.text(document(compared))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("settings")


@pytest.fixture(scope="module")
def compared(folder):
    return compare(ASKED, AXES, folder)


def test_each_combination_is_a_plan_of_its_own(compared, folder):
    assert [setting.name for setting in compared.settings] == [
        "precision=fp32,recompute=full",
        "precision=fp32,recompute=none",
        "precision=bf16,recompute=full",
        "precision=bf16,recompute=none",
    ]
    for setting, c in compared.fitting:
        recompute = ("none", "selective", "full").index(setting.values["recompute"])
        asked = replace(ASKED, precision=setting.values["precision"], fixed={**ASKED.fixed, "recompute": recompute})
        alone = plan(asked, folder).chosen
        assert (c.step, c.bill) == (alone.step, alone.bill)


def test_what_is_made_again_costs_time_and_saves_memory(compared):
    full, none = (c for setting, c in compared.fitting if setting.values["precision"] == "bf16")
    assert full.step.seconds["recompute"] > 0 == none.step.seconds["recompute"]
    assert full.step.bytes["activations"] < none.step.bytes["activations"]
    assert full.bill.usd > none.bill.usd
    assert compared.cheapest[1].bill.usd == min(c.bill.usd for _, c in compared.fitting)


def test_days_until_a_saving_repays_compilation(compared):
    """By hand: the compilation's instance hours at the price, over what a day saves for the same work."""
    first, (_, c) = compared.first, compared.fitting[-1]
    found, hourly = compared.repaid(c), c.bill.usd / (c.bill.days * 24)
    spans = minutes(SMALL.parameters)
    assert found.unit == "$"
    assert found.compiling.low == pytest.approx(spans.low / 60 * hourly)
    assert found.compiling.high == pytest.approx(spans.high / 60 * hourly)
    each = 24 * hourly * (first.bill.days / c.bill.days - 1)  # the same instance: dollars are as days
    assert found.saved_per_day == pytest.approx(each)
    assert found.days.low == pytest.approx(found.compiling.low / each)
    assert found.run == c.bill.days


def test_what_saves_nothing_is_never_repaid(compared):
    dearest = max((c for _, c in compared.fitting), key=lambda c: c.bill.usd)
    against = replace(compared, settings=tuple(reversed(compared.settings)))
    assert against.repaid(dearest).days is None
    assert "never: it saves nothing" in text(against)
    assert compared.repaid(compared.first).saved_per_day == 0


def test_a_setting_that_does_not_fit_says_what_it_lacks(compared, folder):
    large = replace(SMALL, hidden=8192, stacks=((48, Block(8192, Attention(64, 64, 128, 128), Dense(28672))),))
    found = plan(replace(ASKED, model=large), folder)
    setting = SearchedSetting({"precision": "bf16", "recompute": "none"}, found)
    assert setting.best is None
    assert "lacks" in setting.why
    assert "GiB" in setting.why
    both = replace(compared, settings=(setting, *compared.settings))
    assert setting.why in text(both)
    assert both.first is compared.first
    assert to_json(both)["settings"][0] == {"setting": dict(setting.values), "best": None, "why": setting.why}
    late = SearchedSetting({}, plan(replace(ASKED, deadline=1e-3), folder))
    assert late.why == "nothing is in time"
    never = SearchedSetting({}, plan(replace(ASKED, fixed={"tensor": 3}), folder))
    assert never.why.startswith("no such layout: ")


def test_none_that_fits_is_refused_as_a_plan_is(compared, folder):
    late = plan(replace(ASKED, deadline=1e-3), folder)
    with pytest.raises(UsageError) as error:
        text(replace(compared, settings=(SearchedSetting({"recompute": "none"}, late),)))
    assert error.value.code == "TRN175"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "precision=bf16",
        "precision=bf16:bf16",
        "speed=1:2",
        "zero=1:2",
        "tp",
        "recompute=full:some",
        "recompute,recompute",
        "precision=bf16:fp8",
        "tp=1:2:4,pp=1:2:4,dp=1:2:4,mb=1:2:4",
    ],
)
def test_what_cannot_be_compared_is_refused(given):
    with pytest.raises(UsageError) as error:
        axes(given)
    assert error.value.code == "TRN590"
    assert str(MOST) in str(error.value)


def test_a_name_alone_stands_for_all_of_its_values():
    assert axes("precision,zero,cp=1:2") == {"precision": ("bf16", "fp32"), "zero": ("0", "1", "3"), "cp": ("1", "2")}


def test_what_is_given_is_not_compared():
    with pytest.raises(UsageError) as error:
        compare(ASKED, axes("mb=1:2"))
    assert error.value.code == "TRN178"


def test_the_command_prints_settings_and_writes_the_cheapest(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "small.json").write_text(json.dumps(FILE))
    words = [
        "plan",
        "small.json",
        "--stack",
        "ours",
        "--tokens",
        "1T",
        "--target",
        "trn1.2xlarge",
        "--instances",
        "1",
        "--global-batch",
        "4",
        "--layout",
        "mb=1,overlap=1",
        "--cache",
        str(folder),
    ]
    assert main([*words, "--compare", "recompute=full:none", "--csv", "all.csv"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "2 settings",
        "repaid after",
        "what the others are held against",
        "cheapest: recompute=none",
        "GiB on the fullest rank",
        "compilations without a cache",
    ):
        assert part in printed
    assert "recompute=none" in (folder / "all.csv").read_text().splitlines()[1]
    assert main([*words, "--compare", "recompute=full:none", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first, second = found["settings"]
    assert first["held_against"]
    assert not second["held_against"]
    assert second["repaid"]["days"]["low"] < second["repaid"]["days"]["high"]
    assert found["cheapest"] == {"recompute": "none"}
