# SPDX-License-Identifier: Apache-2.0
"""A plan of other tokens, another deadline or price is the same, searched for or put together from another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trnlab import fleet
from trnlab.errors import UsageError
from trnlab.fleet.planning.plan import asked_again, differs_in_steps, plan

SMALL = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> fleet.Question:
    file = tmp_path_factory.mktemp("model") / "small.json"
    file.write_text(json.dumps(SMALL))
    return fleet.Question(fleet.model(str(file)), 1e9, ("trn1.32xlarge",), (1, 2), batch=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@pytest.mark.parametrize(
    "changes", [{"tokens": 3e9}, {"prices": {"trn1.32xlarge": 3.0}}, {"deadline": 86400.0 * 30}], ids=str
)
def test_what_is_asked_again_is_what_is_searched_for(
    asked: fleet.Question, folder: Path, changes: dict[str, object]
) -> None:
    other = replace(asked, **changes)  # type: ignore[arg-type]
    assert not differs_in_steps(asked, other)
    again, searched = asked_again(plan(asked, folder), other), plan(other, folder)
    assert again.chosen.step.layout == searched.chosen.step.layout
    assert again.chosen.bill == searched.chosen.bill
    for one, two in zip(again.tables, searched.tables, strict=True):
        assert np.array_equal(one.worth, two.worth)
        assert np.array_equal(one.days, two.days)


def test_a_deadline_that_nothing_keeps_is_told(asked: fleet.Question, folder: Path) -> None:
    again = asked_again(plan(asked, folder), replace(asked, deadline=1e-6))
    with pytest.raises(UsageError) as raised:
        _ = again.chosen
    assert raised.value.code == "TRN175"


def test_a_price_that_is_told_is_billed_and_named(asked: fleet.Question, folder: Path) -> None:
    found = plan(replace(asked, prices={"trn1.32xlarge": 3.0}), folder)
    bill = found.chosen.bill
    assert bill.price.startswith("as told")
    assert bill.usd == pytest.approx(bill.device_hours / 16 * 3.0)


def test_another_batch_or_stack_has_other_steps(asked: fleet.Question) -> None:
    assert differs_in_steps(asked, replace(asked, batch=32))
    assert differs_in_steps(asked, replace(asked, instances=(1, 1)))
