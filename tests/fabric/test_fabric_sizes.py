# SPDX-License-Identifier: Apache-2.0
"""Times over bytes and ranks: they never fall, jump only where a documented window ends; large groups are quick."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.extent import examples
from trnlab.chips.interconnects import RUNTIMES
from trnlab.collectives import Collective
from trnlab.fabric import choice, cluster, network
from trnlab.fabric.nccom import Bench
from trnlab.fabric.selection import cost_of, schedule_of, seconds_of
from trnlab.units import MIB

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
TARGETS = ("trn1.32xlarge", "trn2.48xlarge", "inf2.48xlarge", "2xtrn1.32xlarge", "3xtrn2.48xlarge", "u-trn2x64")
NEWEST = "2.32"
NETWORKS = {
    (target, name): network.build(cluster.parse(target), RUNTIMES[name]) for target in TARGETS for name in RUNTIMES
}
SIZES = np.unique(np.geomspace(4, 4 << 30, 2000).astype(np.int64))  # by 1 %


def asked(target, operation, per_instance, runtime=NEWEST):
    """A collective of the first ranks of each instance, and its network."""
    net = NETWORKS[target, runtime]
    ranks = min(per_instance * net.cluster.instances, net.cluster.ranks)
    return Collective(operation, (tuple(range(ranks)),)), net, net.cluster.placed(ranks)


CASES = (st.sampled_from(TARGETS), st.sampled_from(OPERATIONS), st.integers(2, 64), st.sampled_from(list(RUNTIMES)))


@settings(max_examples=examples(120), deadline=None)
@given(*CASES)
def test_a_larger_buffer_never_takes_less_time(target, operation, per_instance, runtime):
    request, net, placed = asked(target, operation, per_instance, runtime)
    seconds = seconds_of(request, net, placed, SIZES.astype(np.float64))
    assert (np.diff(seconds) >= -1e-9 * seconds[:-1]).all()


@settings(max_examples=examples(60), deadline=None)
@given(*CASES[:3])
def test_time_grows_no_faster_than_bytes_but_where_a_window_ends(target, operation, per_instance):
    """Windows of mesh (1 MiB of an instance) and of recursive doubling (56 MiB): another algorithm follows, which
    takes at most a quarter more at once. Everywhere else 1 % more bytes take at most 1 % more time.
    """
    request, net, placed = asked(target, operation, per_instance)
    seconds = seconds_of(request, net, placed, SIZES.astype(np.float64))
    grown = seconds[1:] / seconds[:-1] / (SIZES[1:] / SIZES[:-1])
    ends = np.searchsorted(SIZES, choice.window_ends(net.cluster.instances)) - 1
    elsewhere = np.delete(grown, ends)
    assert elsewhere.max() <= 1 + 1e-9
    assert grown.max() <= 1.25
    for end in ends[grown[ends] > 1 + 1e-9].tolist():
        before, after = (schedule_of(request, net, placed, SIZES[at]) for at in (end, end + 1))
        assert [p.name for p in before.phases] != [p.name for p in after.phases]


@settings(max_examples=examples(60), deadline=None)
@given(*CASES[:3], st.sampled_from([name for name in RUNTIMES if name != NEWEST]))
def test_runs_without_a_date_jump_only_where_they_were_printed_to(target, operation, per_instance, runtime):
    """Behind the single-step mesh of an all-reduce, and on Trainium2 at 32 MiB of up to 16 ranks of an instance."""
    request, net, placed = asked(target, operation, per_instance, runtime)
    seconds = seconds_of(request, net, placed, SIZES.astype(np.float64))
    for at in np.flatnonzero(seconds[1:] / seconds[:-1] / (SIZES[1:] / SIZES[:-1]) > 1 + 1e-9).tolist():
        before = schedule_of(request, net, placed, SIZES[at]).algorithm
        ring = SIZES[at] < 32 * MIB * net.cluster.instances <= SIZES[at + 1]
        few = min(per_instance, net.cluster.ranks // net.cluster.instances) <= 16
        assert before == "single-step mesh" or (runtime == "trn2-undated" and ring and few)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 20, 64 << 20])
def test_twice_as_many_instances_never_take_less_time(operation, nbytes):
    """Of one buffer; each instance has all its ranks in the group."""
    spent = []
    for instances in (1, 2, 4, 8, 16, 32):
        net = network.build(cluster.parse(f"{instances}xtrn2.48xlarge"))
        ranks = net.cluster.ranks
        spent.append(
            cost_of(Collective(operation, (tuple(range(ranks)),)), net, net.cluster.placed(ranks), nbytes).seconds
        )
    assert spent == sorted(spent)


def test_the_time_of_a_size_is_that_of_many_sizes():
    request, net, placed = asked("2xtrn1.32xlarge", "all_reduce", 32)
    sizes = [64, 3000, 1 << 20, 5 << 20, 1 << 30]
    alone = [cost_of(request, net, placed, nbytes).seconds for nbytes in sizes]
    np.testing.assert_allclose(seconds_of(request, net, placed, np.array(sizes, np.float64)), alone, rtol=1e-12)


def test_a_sick_network_takes_the_schedule_of_the_healthy_one():
    request, net, placed = asked("2xtrn1.32xlarge", "all_gather", 32)
    sick = net.with_rates({net.cards: 0.01})
    for nbytes in (1 << 10, 1 << 22, 1 << 29):
        steps = [[p.name for p in schedule_of(request, each, placed, nbytes).phases] for each in (net, sick)]
        assert steps[0] == steps[1]
        assert cost_of(request, sick, placed, nbytes).seconds >= cost_of(request, net, placed, nbytes).seconds


@pytest.mark.parametrize("target", ["2xtrn1.32xlarge", "4xtrn2.48xlarge"])
def test_an_all_to_all_of_equal_instances_is_timed_as_that_of_all(target):
    """The short cut over what one instance sends against every transfer by itself."""
    net = network.build(cluster.parse(target))
    placed = net.cluster.placed(net.cluster.ranks)
    request = Collective("all_to_all", (tuple(range(len(placed))),))
    short = cost_of(request, net, placed, 1 << 24)
    whole = cost_of(request, net.with_rates({0: 1.0}), placed, 1 << 24)  # marked as changed
    assert short.seconds == pytest.approx(whole.seconds, rel=1e-12)
    each = len(net.template)
    np.testing.assert_allclose(short.loads[:each], whole.loads[:each], rtol=1e-12)


def test_an_all_to_all_over_4096_ranks_is_predicted_in_seconds():
    """64 instances, 16.8 million transfers; eight sizes. The limit is on processor time, ten times what it took."""
    net = network.build(cluster.parse("64xtrn2.48xlarge"))
    test = Bench("all_to_all", net, net.cluster.placed(4096), [range(4096)])
    begin = time.process_time()
    spent = [test.row(1 << bits).cost.seconds for bits in range(12, 36, 3)]
    assert time.process_time() - begin < 10
    assert spent == sorted(spent)
    card = net.rates[net.cards]
    assert spent[-1] > (1 << 33) * 64 * (63 / 64) / (16 * card)  # all but a part of 64 of every rank's buffer leaves
