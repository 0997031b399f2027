# SPDX-License-Identifier: Apache-2.0
"""Goodput: closed forms against simulations that do not use them, within the simulations' own statistical error."""

from __future__ import annotations

import heapq
import itertools
import math

import numpy as np
import pytest

from trnlab.errors import UsageError
from trnlab.fleet.reliability.failures import SimulatedGoodput, intervals, observe, observe_replicas
from trnlab.fleet.reliability.goodput import DEVICE_HOURS, SWEEP, Reliability
from trnlab.fleet.reliability.renewal import Stops, none_free, replicas, spares_for, young

RATES = (300.0, 2000.0, 20000.0)  # mean seconds between failures
SAVES = ((10.0, 0.0), (0.5, 60.0))  # synchronous; asynchronous
RESTARTS = ([(1.0, 120.0)], [(0.9, 100.0), (0.1, 360.0)])


@pytest.mark.parametrize(("between", "save", "restarts"), list(itertools.product(RATES, SAVES, RESTARTS)))
def test_the_closed_form_is_what_a_simulation_sees(between, save, restarts):
    """Also where a failure every five minutes meets restarts of six."""
    stops = Stops(between, *save, restarts)
    for every in (stops.best(), 3 * stops.best()):
        seen = observe(stops, every, 4000, seed=int(between + save[0]))
        assert 0 < seen.error < 0.02
        assert seen.agrees(stops.share(every)), (seen, stops.share(every))


def test_the_first_order_formula_holds_for_rare_failures_only():
    """Young's and Daly's waste is right where failures are rare, and the simulation refutes it where they are not."""
    rare = Stops(50_000.0, 10.0, 0.0, [(1.0, 120.0)])
    every = young(10.0, rare.between)
    assert rare.first_order(every) == pytest.approx(rare.share(every), abs=4e-4)
    assert observe(rare, every, 4000, seed=1).agrees(rare.first_order(every))
    often = Stops(300.0, 10.0, 0.0, [(1.0, 240.0)])
    seen = observe(often, often.best(), 4000, seed=1)
    assert seen.agrees(often.share(often.best()))
    assert not seen.agrees(often.first_order(often.best()), errors=10)


def test_failures_in_bursts_are_outside_of_the_formula():
    """Of failures that follow each other (a Weibull's shape of a half) more is lost than the form for the same mean
    says: it is exact for failures without memory only."""
    stops = Stops(2000.0, 5.0, 0.0, [(1.0, 300.0)])
    formula = stops.share(stops.best())
    assert observe(stops, stops.best(), 40_000, seed=3).agrees(formula)
    bursts = observe(stops, stops.best(), 40_000, seed=3, shape=0.5)
    assert bursts.share < formula
    assert not bursts.agrees(formula, errors=6)


def test_the_best_interval_is_the_best():
    for between, (stall, upload) in itertools.product(RATES, SAVES):
        stops = Stops(between, stall, upload, [(1.0, 60.0)])
        best = stops.best()
        assert best + stall >= upload
        assert stops.share(best) >= stops.share(1.1 * best)
        if best + stall > upload:
            assert stops.share(best) >= stops.share(0.9 * best)
    rare = Stops(1e8, 10.0, 0.0, [(1.0, 60.0)])
    assert rare.best() == pytest.approx(young(10.0, 1e8), rel=1e-3)


@pytest.mark.parametrize("count", [2, 50, 400])
def test_replicas_that_leave_and_come_back(count):
    there, running = replicas(count, 20_000.0, 600.0, 20.0)
    seen = observe_replicas(count, 20_000.0, 600.0, 20.0, 20_000, seed=count)
    assert seen.agrees(there * running)
    assert 0 < seen.error < 0.004


def observe_spares(
    spares: int, rate: float, away: float, failures: int, seed: int, batches: int = 20
) -> SimulatedGoodput:
    """How often a spare is free when an instance fails: `rate` of them a second, each away for exactly so long. One
    that finds no spare is replaced from outside, and is not counted among those away."""
    random = np.random.default_rng(seed)
    failure = intervals(random, 1 / rate)
    returns: list[float] = []
    clock, shares = 0.0, []
    for batch in range(-1, batches):  # the first one fills the shop
        found = 0
        for _ in range(failures // batches):
            clock += failure()
            while returns and returns[0] <= clock:
                heapq.heappop(returns)
            if len(returns) < spares:
                found += 1
                heapq.heappush(returns, clock + away)
        if batch >= 0:
            shares.append(found / (failures // batches))
    return SimulatedGoodput(float(np.mean(shares)), float(np.std(shares, ddof=1) / math.sqrt(batches)), failures)


def test_spares_are_free_as_erlang_says():
    rate, away = 1 / 400.0, 4000.0
    for spares in (5, 10, 15):
        seen = observe_spares(spares, rate, away, 40_000, seed=spares)
        assert seen.agrees(1 - none_free(spares, rate * away)), spares
    fewest = spares_for(10.0, 0.001)
    assert none_free(fewest, 10.0) <= 0.001 < none_free(fewest - 1, 10.0)


def test_shares_and_waste_are_the_whole_time():
    state = 14 * 405e9
    for devices, blast, store in itertools.product((16, 16_384, 500_000), (None, 64, 2048), ("s3", "neighbour")):
        found = Reliability(blast=blast, store=store).goodput(devices, state, step=10.0)
        assert found.share + sum(found.waste.values()) == pytest.approx(1.0)
        assert 0 <= found.share <= 1
        assert all(part >= 0 for part in found.waste.values())


def test_more_of_what_helps_never_harms():
    state = 14 * 405e9
    share = lambda devices, **settings: Reliability(**settings).goodput(devices, state).share  # noqa: E731
    sizes = (1_000, 10_000, 100_000, 500_000)
    assert sorted((share(n) for n in sizes), reverse=True) == [share(n) for n in sizes]
    swept = [Reliability().scaled(rate).goodput(100_000, state).share for rate in SWEEP]
    assert swept == sorted(swept, reverse=True)
    assert share(100_000, spares=0) < share(100_000, spares=50) < share(100_000, spares=500)
    assert share(100_000, asynchronous=False) < share(100_000)
    assert share(500_000, blast=1024) > share(500_000, blast=16_384) > share(500_000)


def test_meta_saw_more_than_nine_tenths():
    """The job that the rate is from spent more than 90 % of its time training (The Llama 3 Herd of Models): a check,
    to which nothing is fitted."""
    found = Reliability().goodput(16_384, 14 * 405e9, per_instance=8)
    assert found.between / 3600 == pytest.approx(54 * 24 / 419)
    assert found.share > 0.9
    assert DEVICE_HOURS.value == pytest.approx(50_680, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "devices", "code"),
    [
        ({"store": "s4"}, 16, "TRN164"),
        ({}, 0, "TRN165"),
        ({"device_hours": 0.0}, 16, "TRN165"),
        ({"spares": -1}, 16, "TRN165"),
        ({"blast": -4}, 16, "TRN165"),
        ({"interval": -1.0}, 16, "TRN165"),
    ],
)
def test_what_cannot_be_is_told(settings, devices, code):
    with pytest.raises(UsageError, match=code):
        Reliability(**settings).goodput(devices, 1e12)
