# SPDX-License-Identifier: Apache-2.0
"""What a step is in a run whose loop is around `torch.compile`: the run knows where it ends, or is told."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips, profile
from trnlab.frontends.torch import recording
from trnlab.runtime import session
from trnlab.runtime.analysis.steps import ends_of_repetition
from trnlab.runtime.run import RunRecord

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def run(tmp_path):
    torch.compiler.reset()
    made = session.Session(chips.target("trn1.2xlarge"), "fp32")
    with session.activate(made):
        made.run = RunRecord(tmp_path / "run", made, tmp_path / "train.py")
        yield made.run


def train(steps, *, update=False, accumulate=1, report=False, evaluate_first=0):
    """A loop as people write it; the model is compiled, and with `update` the optimizer's step, too."""
    model = nn.Linear(4, 1).to("neuron")
    optimizer = torch.optim.SGD(model.parameters(), torch.tensor(0.1) if update else 0.1)
    compiled = torch.compile(model, backend="neuron")
    step = torch.compile(optimizer.step, backend="neuron") if update else optimizer.step
    x = torch.ones(8, 4, device="neuron")
    with torch.no_grad():
        for _ in range(evaluate_first):
            compiled(x)
    for _ in range(steps):
        for _ in range(accumulate):
            loss = compiled(x).square().mean()
            loss.backward()
        step()
        optimizer.zero_grad()
        if report:
            neuron.report_step(loss, tokens=8)


@pytest.mark.parametrize("form", [{}, {"accumulate": 3}, {"update": True}, {"evaluate_first": 1}], ids=str)
def test_the_time_of_a_step_does_not_depend_on_how_many_there_are(run, form):
    with recording.using("operators"):
        train(4, **form)
    record = run.finish("complete")
    assert record["steps"] == 4 + ("evaluate_first" in form and form.get("update", False))
    assert record["steps_found_by"] == ("repetition" if "update" in form else "optimizer")
    assert record["loss"] == []
    calls: Counter[str] = Counter()
    for entry in record["step"]:
        calls[re.split(r"[_(]", run.executables[entry["executable"]].name)[0]] += entry["times"]
    times = form.get("accumulate", 1)
    updates = int("update" in form)
    # "graph" is the optimizer's; or an evaluation's, which is the same program as the "forward" of training.
    assert calls["forward"] + calls["graph"] == times + updates
    assert (calls["backward"], calls["mean"]) == (times, times), "the loss is eager"
    assert (calls["add"] > 0) == (not updates), "without `update` the optimizer is"
    assert record["instructions_per_step"] < record["instructions"] / 2
    text = profile.text(record)
    assert "4 steps by" in text
    assert "report_step(loss, tokens)" in text


@pytest.mark.parametrize("form", [{}, {"accumulate": 3}, {"update": True}, {"evaluate_first": 1}], ids=str)
def test_a_step_ends_where_it_did_when_what_is_not_compiled_is_recorded(run, form):
    train(4, **form)
    run.session.settle()
    record = run.finish("complete")
    assert record["steps"] == 4 + ("evaluate_first" in form and form.get("update", False))
    assert record["steps_found_by"] == ("repetition" if "update" in form else "optimizer")
    assert record["host_fallback_ops"]["training"] == 0


def test_a_script_states_loss_and_tokens(run):
    train(3, report=True)
    record = run.finish("complete")
    assert (record["steps"], record["steps_found_by"], record["tokens_per_step"]) == (3, "report", 8)
    assert len(record["loss"]) == 3
    assert record["cost"]["usd_per_million_tokens"] > 0
    assert record["host_fallback_ops"]["training"] == 0


@pytest.mark.parametrize(
    ("sequence", "ends"),
    [
        ("", []),
        ("a", []),
        ("ab", []),
        ("aa", [1, 2]),
        ("fbfbfb", [2, 4, 6]),
        ("ffbbuffbbu", [5, 10]),
        ("efbufbufbu", [1, 4, 7, 10]),
        ("abcdefgh", []),
        ("abcdefghxx", []),
    ],
)
def test_repetitions_are_found(sequence, ends):
    assert ends_of_repetition(sequence) == ends
