# SPDX-License-Identifier: Apache-2.0
"""Laws that every schedule obeys: no faster than any cut of the network allows, and never slowed by a faster link."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.extent import examples
from trnlab.fabric import choice, cluster, network
from trnlab.fabric.nccom import Bench
from trnlab.fabric.timing import cost

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
NETWORKS = {
    name: network.build(cluster.parse(name))
    for name in (
        "trn1.32xlarge",
        "trn2.48xlarge",
        "inf2.48xlarge",
        "inf2.24xlarge",
        "2xtrn1.32xlarge",
        "u-trn2x64",
    )
}


def bench(target, operation, ranks=None):
    net = NETWORKS[target]
    placed = net.cluster.placed(net.cluster.ranks if ranks is None else ranks)
    return Bench(operation, net, placed, [range(len(placed))])


def cut_rate(net, side):
    """Byte/s that leave the chips of `side` (a mask) over wires and cards."""
    each = net.cluster.target.chips
    rate = 0.0
    for instance in range(net.cluster.instances):
        base = instance * len(net.template)
        for (a, b), number in net.wires.items():
            if side[instance * each + a] and not side[instance * each + b]:
                rate += net.rates[base + number]
        if net.cluster.instances > 1:
            cards = net.cluster.interconnect.cards
            using = {chip * cards // each for chip in range(each) if side[instance * each + chip]}
            rate += sum(net.rates[base + net.cards + 2 * card] for card in using)
    return rate


def must_cross(operation, nbytes, share, ranks):
    """The least that leaves a side that holds this share of the ranks, for a larger buffer of `nbytes`."""
    if operation == "all_reduce":
        return nbytes  # partial sums of the whole
    if operation == "all_gather":
        return nbytes * share  # its own chunks, once
    if operation == "reduce_scatter":
        return nbytes * (1 - share)  # partial sums of the others' chunks
    return nbytes * share * (1 - share) * ranks


@settings(max_examples=examples(80), deadline=None)
@given(st.sampled_from(sorted(NETWORKS)), st.sampled_from(OPERATIONS), st.integers(0, 30), st.integers(0, 2**31))
def test_nothing_is_faster_than_latency_and_the_bytes_over_any_cut(target, operation, bits, seed):
    assume(bits < 27 or operation != "all_to_all")
    test = bench(target, operation)
    net, nbytes = test.network, 1 << bits
    side = np.random.default_rng(seed).random(net.cluster.chips) < 0.5
    assume(0 < side.sum() < len(side))
    share = side[test.placed].mean()
    floor = must_cross(operation, nbytes, share, len(test.placed)) / cut_rate(net, side)
    latency = (net.costs.launch.value + net.costs.step.value) * 1e-9
    assert test.row(nbytes).cost.seconds >= (latency + floor) * (1 - 1e-9)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(sorted(NETWORKS)),
    st.sampled_from(["ring", "kangaring"]),
    st.integers(10, 30),
    st.floats(0.1, 10),
    st.integers(0, 2**31),
)
def test_a_faster_link_never_slows_a_schedule_whose_flows_share_none(target, name, bits, factor, seed):
    """Rings: every wire and card carries one flow in a step. Links that all flows of a chip share count as theirs."""
    test = bench(target, "all_reduce")
    net = test.network
    schedule = test.schedule(1 << bits, inside=name, between="ring")
    number = int(np.random.default_rng(seed).integers(len(net.rates)))
    before = cost(schedule, net, test.placed, 1 << bits).seconds
    after = cost(schedule, net.with_rates({number: factor}), test.placed, 1 << bits).seconds
    assert after <= before * (1 + 1e-9) if factor >= 1 else after >= before * (1 - 1e-9)


def halves(net, placed):
    """Masks over chips that part the ranks' chips: the first half of them, and every second one."""
    chips = np.unique(placed)
    picks = [chips[: len(chips) // 2], chips[::2]] if len(chips) > 1 else []
    return [np.isin(np.arange(net.cluster.chips), pick) for pick in picks]


@pytest.mark.parametrize("target", ["trn1.32xlarge", "trn2.48xlarge", "2xtrn1.32xlarge"])
@pytest.mark.parametrize("name", [None, "mesh", "rdh", "ring", "kangaring"])
def test_groups_of_2_to_64_ranks_respect_every_link_and_every_cut(target, name):
    """By every algorithm that may serve them; operations and sizes, from latency to bandwidth, take turns. On two
    instances half of the ranks are on each.
    """
    net = NETWORKS[target]
    step = net.costs.step.value * 1e-9
    for ranks in range(2, net.cluster.ranks + 1, net.cluster.instances):
        placed = net.cluster.placed(ranks)
        operation, nbytes = OPERATIONS[ranks % 3], (1 << 12, 3 << 20, 1 << 30)[ranks // 3 % 3]
        test = Bench(operation, net, placed, [range(ranks)])
        schedule = test.schedule(nbytes, **({"inside": name} if name else {}))
        found = cost(schedule, net, placed, nbytes)
        moving = found.seconds - found.launch
        assert (found.loads <= net.rates * moving * (1 + 1e-9)).all(), (ranks, operation, nbytes)
        for side in halves(net, placed):
            floor = must_cross(operation, nbytes, side[placed].mean(), ranks) / cut_rate(net, side)
            assert moving >= (step + floor) * (1 - 1e-9), (ranks, operation, nbytes)


@pytest.mark.parametrize("target", ["1024xtrn2.48xlarge", "1000xtrn1.32xlarge"])
@pytest.mark.parametrize("bits", [10, 24, 30])
def test_a_thousand_instances_are_timed_at_every_size(target, bits):
    place = cluster.parse(target)
    net, placed = network.build(place), place.placed(place.ranks)
    test = Bench("all_reduce", net, placed, [range(place.ranks)])
    assert test.row(1 << bits).cost.seconds > net.costs.network_step.value * 1e-9
    assert choice.windows_of(net).name == net.costs.runtime
