# SPDX-License-Identifier: Apache-2.0
"""Continuous batching against what is known of queues: M/D/1, Little's law, laws of load and of faster engines."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from trnlab.fleet.serving.queue import POLICIES, PREFILL_FIRST, TURNS, ReplicaTimes, serve

ENGINE = ReplicaTimes(0.1, {1: 0.010, 4: 0.011, 16: 0.014})


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_prefills_alone_wait_as_in_m_d_1(load):
    """Requests of one token are a queue with one server and a fixed time: Pollaczek and Khinchine's mean wait, within
    four standard errors of twenty batches."""
    seen = serve(ReplicaTimes(0.1, {1: 1.0}), load / 0.1, 1, 80_000, seed=7)
    waits = (seen.first - 0.1).reshape(20, -1).mean(1)
    expected = load * 0.1 / (2 * (1 - load))
    assert abs(waits.mean() - expected) < 4 * waits.std(ddof=1) / np.sqrt(20)
    assert waits.std(ddof=1) / np.sqrt(20) < 0.05 * expected
    assert seen.busy == pytest.approx(load, rel=0.02)


@pytest.mark.parametrize(("policy", "rate"), list(itertools.product(POLICIES, (0.5, 3.0, 6.0))))
def test_requests_present_are_rate_times_latency(policy, rate):
    """Little's law: the mean number present, integrated over time, is arrivals a second by mean seconds of each."""
    seen = serve(ReplicaTimes(0.1, ENGINE.decode, policy), rate, 50, 3000, seed=1)
    assert seen.present == pytest.approx(seen.throughput * seen.whole.mean(), rel=1e-9)


def test_a_lonely_request_takes_prefill_and_steps():
    seen = serve(ENGINE, 1e-6, 30, 5, seed=0)
    np.testing.assert_allclose(seen.first, 0.1, rtol=1e-6)
    np.testing.assert_allclose(seen.whole, 0.1 + 29 * 0.010, rtol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_more_requests_never_lower_latency(policy):
    engine = ReplicaTimes(0.1, ENGINE.decode, policy)
    seen = [serve(engine, rate, 40, 3000, seed=3) for rate in (0.5, 1, 2, 4, 6, 8)]
    for name, quantile in itertools.product(("first", "whole"), (50, 90, 99)):
        values = [np.percentile(getattr(s, name), quantile) for s in seen]
        assert values == sorted(values), (name, quantile)


def test_a_faster_engine_is_never_slower():
    for rate in (1.0, 5.0, 8.0):
        slow, fast = (
            serve(ReplicaTimes(f * 0.1, {b: f * s for b, s in ENGINE.decode.items()}), rate, 40, 2000, 5)
            for f in (1.0, 0.8)
        )
        for quantile in (50, 90, 99):  # a single request may meet another batch, and be later
            assert np.percentile(fast.whole, quantile) < np.percentile(slow.whole, quantile)
            assert np.percentile(fast.first, quantile) < np.percentile(slow.first, quantile)


def test_every_token_takes_a_step_and_the_batch_is_bounded():
    """Simulated step by step, without skipping: the same times, for both policies."""
    for policy, rate in itertools.product((PREFILL_FIRST, TURNS), (1.0, 6.0, 20.0)):
        engine = ReplicaTimes(0.05, {1: 0.010, 2: 0.012, 4: 0.015}, policy)
        seen = serve(engine, rate, 17, 400, seed=9)
        first, whole = _step_by_step(engine, rate, 17, 400, 9)
        np.testing.assert_allclose(seen.first, first, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(seen.whole, whole, rtol=1e-9, atol=1e-9)
        assert seen.batch <= 4


def _step_by_step(engine, rate, output, requests, seed):
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1.0, requests)) / rate
    clock, queue, batch, owed = arrivals[0], list(range(requests)), {}, False
    first, done = np.zeros(requests), np.zeros(requests)
    while queue or batch:
        ready = queue and arrivals[queue[0]] <= clock
        if ready and len(batch) < engine.places and not (owed and batch):
            who = queue.pop(0)
            clock += engine.prefill
            first[who], batch[who], owed = clock, output - 1, engine.policy == TURNS
        elif batch:
            clock, owed = clock + engine.step(len(batch)), False
            for who in list(batch):
                batch[who] -= 1
                if not batch[who]:
                    done[who] = clock
                    del batch[who]
        else:
            clock = arrivals[queue[0]]
    return first - arrivals, done - arrivals


def test_beyond_capacity_the_queue_grows():
    rate = 1.2 * ENGINE.capacity(40)
    short, long = (serve(ENGINE, rate, 40, n, seed=2) for n in (1000, 4000))
    assert np.median(long.whole) > 2 * np.median(short.whole)
    assert long.throughput <= ENGINE.capacity(40) * 1.001
