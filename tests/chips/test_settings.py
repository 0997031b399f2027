# SPDX-License-Identifier: Apache-2.0
"""What-ifs as text: units are understood, wrong names and units are refused with the way out."""

from __future__ import annotations

import pytest

from trnlab import chips
from trnlab.chips import Confidence
from trnlab.cli.main import main
from trnlab.errors import UsageError

TRN2 = chips.get("trn2")


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("chip.dma.engine_bandwidth=30GBps", "dma.engine_bandwidth", 30e9),
        ("dma.engine_bandwidth=1.5 GiB/s", "dma.engine_bandwidth", 1.5 * 2**30),
        ("chip.sync.semaphore=0.05us", "sync.semaphore", 50),
        ("chip.tensor.clock=2.8GHz", "tensor.clock", 2.8e9),
        ("chip.hbm.capacity=24GiB", "hbm.capacity", 24 * 2**30),
        ("chip.tensor.full_rate_above=40%", "tensor.full_rate_above", 0.4),
        ("chip.vector.issue=60", "vector.issue", 60),
        ("chip.vector.issue=60cycles", "vector.issue", 60),
        ("chip.tensor.peak_flops.bfloat16=100TFLOPS", "tensor.peak_flops.bfloat16", 100e12),
    ],
)
def test_units_are_understood(setting, path, value):
    figure = dict(chips.figures(chips.apply_settings(TRN2, [setting])))[path]
    assert figure.value == pytest.approx(value)
    assert figure.confidence is Confidence.ASSUMED
    assert "what-if" in figure.source


@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ("chip.dma.engine_bandwith=30GBps", "TRN102", "dma.engine_bandwidth"),
        ("chip.dma.engine_bandwidth=30GBit", "TRN105", "did you mean 30GB"),
        ("chip.dma.engine_bandwidth=30", "TRN105", "needs a unit"),
        ("chip.vector.issue=60ns", "TRN105", "cycle"),
        ("chip.sync.semaphore=-3ns", "TRN104", "positive"),
        ("chip.sync.semaphore", "TRN104", "--set"),
        ("chip.sync.semaphore=fast", "TRN104", "--set"),
    ],
)
def test_what_is_wrong_is_refused_with_the_way_out(setting, code, words):
    with pytest.raises(UsageError) as caught:
        chips.apply_settings(TRN2, [setting])
    assert caught.value.code == code
    assert words in str(caught.value)


def test_several_settings_go_together_and_none_change_nothing():
    changed = chips.apply_settings(TRN2, ["chip.vector.issue=1", "chip.scalar.issue=2"])
    assert (changed.vector.issue.value, changed.scalar.issue.value) == (1, 2)
    assert chips.apply_settings(TRN2, []) == TRN2


def test_assumed_rules_of_cost_are_told_beside_assumed_figures(capsys):
    """What is assumed of a chip is its assumed figures, and the rules that nobody published."""
    assert main(["chips", "trn2", "--assumed"]) == 0
    told = capsys.readouterr().out
    assert all(path in told for path, _ in chips.assumed(chips.get("trn2")))
    assert "gpsimd.tensor_partition_reduce" in told
    assert "measured" not in told.partition("figures:")[2].partition("\n")[2]
