# SPDX-License-Identifier: Apache-2.0
"""`trnlab goodput`: measures against failures, what they keep, and the place that so many chips need."""

from __future__ import annotations

import json
import re

import pytest

from trnlab import chips
from trnlab.cli.main import main
from trnlab.errors import UsageError
from trnlab.fleet.bills.energy import PUE, WATTS
from trnlab.fleet.bills.site import DEALT, HALVING, ORDERED, Site
from trnlab.fleet.reliability.goodput import Reliability
from trnlab.fleet.reliability.measures import Job, examine, simulate

TRN2 = chips.target("trn2.48xlarge")
HALF_A_MILLION = Job(TRN2, 500_000, 1e12)


@pytest.fixture(scope="module")
def found():
    return examine(HALF_A_MILLION, Reliability(), 0.9)


def test_each_measure_helps_and_the_first_that_is_enough_is_named(found):
    shares = [measure.goodput.share for measure in found.measures]
    assert shares == sorted(shares)
    assert found.enough is next(m for m in found.measures if m.goodput.share >= 0.9)
    assert found.enough.how.blast == HALF_A_MILLION.copy
    for measure in found.measures:
        assert list(measure.shares) == sorted(measure.shares, reverse=True)


def test_limits_are_where_the_target_is_just_kept(found):
    """Beyond each limit goodput is below the target, and at it not."""
    how, limits = found.enough.how, found.limits
    share = lambda **changes: HALF_A_MILLION.goodput(Reliability(**{**vars(how), **changes})).share  # noqa: E731
    assert share(blast=limits.blast) >= 0.9 > share(blast=int(1.01 * limits.blast))
    assert share(detection=limits.pause, regroup=0.0) >= 0.9 - 1e-9
    assert share(detection=1.01 * limits.pause, regroup=0.0) < 0.9
    assert share(device_hours=limits.device_hours) >= 0.9 - 1e-9
    assert share(device_hours=0.99 * limits.device_hours) < 0.9


def test_an_event_simulation_confirms_each_measure(found):
    for measure in found.measures:
        assert simulate(HALF_A_MILLION, measure, seed=2).agrees(measure.goodput.share), measure.name


def test_nothing_is_enough_for_a_target_out_of_reach():
    far = examine(HALF_A_MILLION, Reliability(), 0.999)
    assert far.enough is None
    assert far.limits.blast is None
    with pytest.raises(UsageError, match="TRN166"):
        examine(HALF_A_MILLION, Reliability(), 1.0)


def test_power_and_halls():
    site = Site(TRN2, 500_000)
    assert site.watts == pytest.approx(500_000 * WATTS["trn2"].value * 1.25 * PUE.value)
    assert Site(TRN2, site.chips_for(2e9)).watts <= 2e9 < Site(TRN2, site.chips_for(2e9) + 16).watts


def test_gradients_across_the_bisection_are_those_of_the_algorithm():
    """Counted on four replicas of one instance: each ring of four crosses the middle once each way in order, twice
    where neighbours are on different sides."""
    ways = {w.name: w for w in Site(TRN2, 64).crossings(1e9, 16, 1.0)}
    gradients = 4e9
    assert ways[ORDERED].nbytes == 2 * gradients
    assert ways[HALVING].nbytes == 2 * gradients
    assert ways[DEALT].nbytes == 4 * gradients
    assert Site(TRN2, 16).crossings(1e9, 16, 1.0) == []
    whole = Site(TRN2, 1600).bisection.value
    assert Site(TRN2, 1600, oversubscription=4).bisection.value == whole / 4
    assert whole == pytest.approx(50 * 16 * 25e9 * 0.7)


def test_the_command_says_what_is_enough(capsys):
    assert main(["goodput", "--chips", "500k", "--power", "2GW"]) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"<- enough", printed)) == 1
    for part in (
        "a failure every 6.08 min",
        "spares:",
        "simulated:",
        "halls",
        "bisection:",
        "assumed",
        "2,000 MW are enough",
    ):
        assert part in printed
    assert main(["goodput", "--chips", "500k", "--above", "0.999"]) == 1
    assert "nothing of it keeps goodput above" in capsys.readouterr().out


def test_the_command_as_data(capsys):
    assert main(["goodput", "--chips", "512", "--model", "llama3-8b", "--json", "--store", "lustre-500"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["chips"] == 512
    assert told["measures"][0]["share"] + sum(told["measures"][0]["waste"].values()) == pytest.approx(1)
    assert (
        abs(told["simulated"]["share"] - next(m["share"] for m in told["measures"] if m["name"] == told["enough"]))
        <= 4 * told["simulated"]["error"]
    )


@pytest.mark.parametrize(("target", "chips"), [("trn1.2xlarge", "4"), ("inf2.48xlarge", "24"), ("trn2.3xlarge", "1")])
def test_small_jobs_and_instances_without_cards(target, chips, capsys):
    asked = ["goodput", "--chips", chips, "--target", target, "--model", "gpt2"]
    assert main(asked) == 0
    assert "bisection: none" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert 0 < told["measures"][0]["share"] <= 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--chips", "16", "--target", "inf2.48xlarge", "--store", "neighbour"], "TRN164"),
        (["--chips", "0"], "TRN173"),
        (["--chips", "2GW"], "TRN173"),
        (["--chips", "16", "--above", "90"], "TRN569"),
        (["--chips", "16", "--store", "s4"], "TRN164"),
        (["--chips", "16", "--target", "trn9"], "TRN101"),
        (["--chips", "16", "--replica", "0"], "TRN569"),
        (["--chips", "16", "--device-hours", "-1"], "TRN569"),
        (["--chips", "16", "--model", "llama9"], "TRN171"),
        (["--chips", "16", "--oversubscription", "0"], "TRN569"),
    ],
)
def test_mistakes_are_told(arguments, code, capsys):
    assert main(["goodput", *arguments]) == 2
    assert code in capsys.readouterr().err
