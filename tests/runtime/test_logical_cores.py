# SPDX-License-Identifier: Apache-2.0
"""Runs on logical cores of two NeuronCores: NEURON_LOGICAL_NC_CONFIG, and what a summary says of both cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnlab import chips, profile
from trnlab.cli.commands import parsed
from trnlab.errors import CapacityError, UsageError
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import dtype
from trnlab.runtime import device
from trnlab.runtime.run import RunRecord
from trnlab.runtime.session import Session, from_environment, from_settings
from trnlab.runtime.settings import Settings

TARGET = chips.target("trn2.3xlarge")


def graph():
    b = GraphBuilder("mlp")
    x, w, v = (
        b.input(name, shape, dtype("bfloat16"))
        for name, shape in (("x", (512, 512)), ("w", (512, 1024)), ("v", (1024, 512)))
    )
    b.output(b.dot_general(b.gelu(b.dot_general(x, w, ((1,), (0,)))), v, ((1,), (0,))))
    return b.build()


def test_the_vendors_variable_and_the_option_say_how_many_cores_are_one():
    for told, both in (("1", False), ("2", True)):
        assert from_environment({"TRNLAB_TARGET": "trn2", "NEURON_LOGICAL_NC_CONFIG": told}).pairs is both
    assert not from_environment({"TRNLAB_TARGET": "trn2"}).pairs
    args = parsed(["run", "--target", "trn2", "--lnc", "2", "train.py"])
    assert from_settings(Settings.resolved({}, args)).pairs
    for target, told in (("trn1.2xlarge", "2"), ("trn2", "4"), ("trn2", "both")):
        with pytest.raises(UsageError, match="TRN194"):
            from_environment({"TRNLAB_TARGET": target, "NEURON_LOGICAL_NC_CONFIG": told})


def test_a_run_on_two_cores_is_timed_and_told_of_both(tmp_path: Path):
    found = {}
    for both in (False, True):
        session = Session(TARGET, pairs=both)
        run = RunRecord(tmp_path / str(both), session, Path("train.py"))
        executable = device.compile_graph(graph(), session)
        run.executed(executable)
        run.step(1.0, tokens=512)
        found[both] = run.finish("complete"), executable
    (one, single), (two, double) = found[False], found[True]
    assert single.timeline.cores == 1
    assert double.timeline.cores == 2
    assert double.timeline.total == double.outline.total < single.timeline.total
    assert two["cost"]["cores_used"] == 2 * one["cost"]["cores_used"] == 2
    assert two["memory"]["capacity_bytes"] == 2 * one["memory"]["capacity_bytes"]
    assert two["peak_flops"] == 2 * one["peak_flops"]
    assert two["mfu"] * two["step_time_s"] == pytest.approx(one["mfu"] * one["step_time_s"] / 2)
    assert two["cost"]["usd_per_million_tokens"] < one["cost"]["usd_per_million_tokens"]
    assert two["instructions_per_step"] == len(double.timeline) > one["instructions_per_step"]
    assert two["advice"], "the program of both is timed again without each cost"
    profile.render(tmp_path / "True")
    page = (tmp_path / "True" / profile.REPORT).read_text(encoding="utf-8")
    assert "vector 1" in page
    assert "a logical core of two NeuronCores" in page


def test_what_does_not_fit_one_core_may_fit_both():
    b = GraphBuilder("large")
    capacity = chips.get("trn2").hbm.capacity_bytes
    b.output(b.tanh(b.input("x", (capacity // 4 + 4096,), dtype("bfloat16"))))
    made = b.build()
    with pytest.raises(CapacityError, match="one core"):
        device.forecast_graph(made, TARGET.chip).require("large", TARGET.chip)
    device.forecast_graph(made, TARGET.chip, 2).require("large", TARGET.chip)
    b = GraphBuilder("larger")
    b.output(b.tanh(b.input("x", (capacity // 2 + 4096,), dtype("bfloat16"))))
    with pytest.raises(CapacityError, match="a logical core"):
        device.forecast_graph(b.build(), TARGET.chip, 2).require("larger", TARGET.chip)
