# SPDX-License-Identifier: Apache-2.0
"""Laws of time on the network: no link above its rate, nothing faster than latency and bisection, and faults."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnlab import chips
from trnlab.chips import interconnects
from trnlab.collectives import Collective
from trnlab.errors import UsageError
from trnlab.fabric import choice, cluster, faults, network
from trnlab.fabric.flows import Flows, duration, fair
from trnlab.fabric.selection import cost_of, schedule_of
from trnlab.fabric.timing import cost
from trnlab.fabric.world import World

TARGETS = ["trn1.32xlarge", "trn2.48xlarge", "2xtrn2.48xlarge", "inf2.48xlarge", "u-trn2x64", "trn3-gen2-ultraserver"]


def spent(target, nbytes, change=lambda net: net, **forced):
    place = cluster.parse(target)
    net, placed = change(network.build(place)), place.placed(place.ranks)
    asked = Collective("all_reduce", (tuple(range(place.ranks)),))
    return cost_of(asked, net, placed, nbytes, **forced), net


def test_every_instance_of_the_catalogue_has_wires_with_a_source():
    for target in chips.TARGETS.values():
        wires = interconnects.of(target)
        assert np.prod(wires.shape) == target.chips
        assert wires.near.source
        assert (wires.kind == "single") == (target.chips == 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("nbytes", [1, 1 << 16, 1 << 25, 1 << 30])
def test_no_link_is_above_its_rate_and_more_bytes_take_longer(target, nbytes):
    one, net = spent(target, nbytes)
    assert one.busy <= one.seconds - one.launch
    assert (one.loads <= net.rates * (one.seconds - one.launch) * (1 + 1e-9)).all()
    assert one.seconds >= one.launch + net.costs.step.value * 1e-9
    assert spent(target, nbytes * 2)[0].seconds >= one.seconds


@pytest.mark.parametrize("name", choice.NAMES)
def test_with_one_algorithm_time_grows_with_bytes(name):
    times = [spent("trn2.48xlarge", 1 << bits, inside=name)[0].seconds for bits in range(10, 31, 4)]
    assert times == sorted(times)


@pytest.mark.parametrize("target", ["trn1.32xlarge", "trn2.48xlarge"])
def test_a_large_all_reduce_is_near_what_wires_and_dma_engines_allow(target):
    """Each chip takes in and gives out nearly two buffers over all wires, and each of its ranks sends as much."""
    nbytes = 1 << 30
    one, net = spent(target, nbytes)
    wires = interconnects.of(net.cluster.target)
    over_wires = 2 * nbytes * (15 / 16) / (4 * wires.near.value * net.costs.link_efficiency.value)
    ranks = net.cluster.ranks_per_chip
    sent = 2 * nbytes * (1 - 1 / net.cluster.ranks) * ranks
    floor = max(over_wires, sent / (int(net.cluster.target.chip.cores.value) * net.costs.core_rate.value))
    assert floor * (1 - 1e-9) < one.seconds < 1.3 * floor


def test_a_slower_link_never_helps_and_a_faster_one_never_hurts():
    base, net = spent("trn2.48xlarge", 1 << 28, inside="ring")
    wire = net.wires[0, 1]
    for factor in (0.5, 0.9, 1.1, 2.0):
        other, _ = spent("trn2.48xlarge", 1 << 28, change=lambda n, f=factor: n.with_rates({wire: f}), inside="ring")
        slower = other.seconds / base.seconds - 1
        assert slower >= -1e-9 if factor < 1 else slower <= 1e-9


def test_between_instances_cards_and_their_latency_count():
    near, _ = spent("trn2.48xlarge", 1 << 10)
    far, net = spent("2xtrn2.48xlarge", 1 << 10)
    assert far.seconds > near.seconds + 15e-6  # a single step, whose bytes are still worth less than another one
    twice, _ = spent("2xtrn2.48xlarge", 1 << 10, inside="mesh")
    assert twice.seconds > near.seconds + 2 * 15e-6  # scatter and gather, a step each
    large, _ = spent("2xtrn2.48xlarge", 1 << 30)
    card = net.rates[net.cards]
    assert large.seconds > 2 * (1 << 30) / 2 / (16 * card)  # half of the buffer leaves each instance, twice


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_rates_are_max_min_fair(seed):
    """No link is above its rate, and each flow has a full link on which no other flow has more."""
    draw = np.random.default_rng(seed)
    count, links = int(draw.integers(1, 12)), int(draw.integers(1, 6))
    uses = draw.random((count, links)) < 0.5
    uses[np.arange(count), draw.integers(0, links, count)] = True
    flow, link = np.nonzero(uses)
    weight = draw.choice([1.0, 2.0], len(flow))
    rates = draw.uniform(1, 10, links)
    flows = Flows(draw.uniform(0, 5, count), flow, link, weight)
    rate = fair(flows, rates, np.ones(count, dtype=bool))
    used = np.bincount(link, weight * rate[flow], links)
    assert (used <= rates * (1 + 1e-9)).all()
    for number in range(count):
        mine = link[flow == number]
        assert any(
            np.isclose(used[x], rates[x]) and rate[number] >= rate[flow[link == x]].max() * (1 - 1e-9) for x in mine
        )
    through = np.bincount(link, weight * flows.size[flow], links) / rates
    assert duration(flows, rates) >= through.max() * (1 - 1e-9)


def test_instances_that_do_the_same_are_timed_once_and_equal():
    """The short cut for equal instances gives the time of all of them."""
    short, _ = spent("4xtrn2.48xlarge", 1 << 26)
    whole, _ = spent("4xtrn2.48xlarge", 1 << 26, change=lambda n: n.with_rates({0: 1.0}))  # marked as changed
    assert short.seconds == pytest.approx(whole.seconds, rel=1e-12)


@pytest.mark.parametrize("target", ["trn1.32xlarge", "2xtrn2.48xlarge", "inf2.48xlarge"])
def test_routes_go_around_a_wire_that_is_down(target):
    """Straight on the collective would never end; around it nothing moves over the wire, and no time is won."""
    name = "link:node1.0-1" if target.startswith("2x") else "link:0-1"
    around = lambda net: faults.applied(net, [f"{name}=around"])  # noqa: E731
    healthy, net = spent(target, 1 << 28)
    detour, sick = spent(target, 1 << 28, change=around)
    assert healthy.seconds <= detour.seconds < 10 * healthy.seconds
    assert not detour.loads[sorted(sick.avoided)].any()
    assert healthy.loads[sorted(sick.avoided)].all() or sick.cluster.instances > 1, "alike ones are timed as one"
    each = sick.cluster.target.chips
    pairs = np.array([(a, b) for a in range(each) for b in range(each) if a != b]) + each * (
        sick.cluster.instances - 1
    )
    ways, counts = sick.routes(pairs)
    assert not sick.avoided & set(ways.tolist())
    hops = [net.routes(pair[None])[1][0] for pair in pairs]
    assert (counts >= hops).all()
    assert (counts > hops).any()
    for (src, dst), way in zip(pairs.tolist(), np.split(ways, np.cumsum(counts)[:-1])):
        ends = [sick.template[number % len(sick.template)].ends for number in way]
        assert ends[0][0] == src % each
        assert ends[-1][1] == dst % each
        assert all(a[1] == b[0] for a, b in pairwise(ends)), "hop by hop"


def test_a_chip_without_wires_is_refused():
    every = [f"link:0-{other}=around" for other in (1, 3, 4, 12)]
    with pytest.raises(UsageError, match="TRN197"):
        spent("trn1.32xlarge", 1 << 20, change=lambda net: faults.applied(net, every))
    with pytest.raises(UsageError, match="TRN184"):
        faults.applied(network.build(cluster.parse("2xtrn1.32xlarge")), ["efa:node0.rail0=around"])


def test_faults_slow_down_what_uses_them():
    def sick(*what):
        return spent("2xtrn1.32xlarge", 1 << 30, change=lambda net: faults.applied(net, list(what)))[0].seconds

    well = sick()
    assert sick("efa:node0.rail3=half") > well
    assert sick("link:node0.0-4=0.25") > well
    with pytest.raises(UsageError, match="TRN187"):
        sick("efa:node1.rail0=down")


@pytest.mark.parametrize(
    "fault", ["efa:node9.rail0=down", "link:0-4=fast", "link:0-4=2", "nothing", "link:0-99=half"]
)
def test_faults_that_are_none_are_refused(fault):
    with pytest.raises(UsageError, match="TRN184"):
        faults.applied(network.build(cluster.parse("trn1.32xlarge")), [fault])


@pytest.mark.parametrize("text", ["", "x", "0xtrn2.48xlarge", "4x", "4 x trn2.48xlarge", "trn2.48xlarge x4"])
def test_names_of_no_cluster_are_refused(text):
    with pytest.raises(UsageError, match=r"TRN181|TRN101"):
        cluster.parse(text)


def test_ranks_that_do_not_fit_and_groups_that_are_not_the_same_everywhere_are_refused():
    place = cluster.parse("2xtrn1.32xlarge")
    for ranks in (0, 3, 66):
        with pytest.raises(UsageError, match="TRN180"):
            place.placed(ranks)
    placed = place.placed(64)
    with pytest.raises(UsageError, match="TRN183"):
        choice.algorithm([0, 1, 2, 32], network.build(place), placed)
    alone = cluster.parse("2xinf2.48xlarge")
    with pytest.raises(UsageError, match="TRN182"):
        spent(alone.name, 1024)


def test_a_thousand_instances_are_timed_by_what_differs():
    """65536 ranks, every transfer between instances a flow of its own; memory stays small."""
    one, _ = spent("1024xtrn2.48xlarge", 1 << 30, inside="rdh", between="ring")
    assert one.seconds > 2 * 1023 * 15e-6  # a ring through all instances, twice


def test_who_adds_up_what_came_from_other_chips_has_a_step_for_it():
    """internode-collective-comm.rst: "scatters ..., and then locally reduces"; ranks of a chip read as they add."""
    net = network.build(cluster.parse("trn2.48xlarge"))
    step = net.costs.step.value * 1e-9
    for ranks, stride, gathers, reduces in ((4, 1, 1, 1), (4, 4, 1, 2), (16, 1, 2, 2)):
        group = tuple(range(0, ranks * stride, stride))
        placed = net.cluster.placed(ranks * stride)
        for kind, steps in (("all_gather", gathers), ("reduce_scatter", reduces)):
            schedule = schedule_of(Collective(kind, (group,)), net, placed, 4096)
            assert cost(schedule, net, placed, 4096).latency == pytest.approx(steps * step), (kind, group)
    at_once = [
        cost(
            schedule_of(
                Collective("all_reduce", (tuple(range(0, 4 * stride, stride)),)),
                net,
                net.cluster.placed(4 * stride),
                64,
            ),
            net,
            net.cluster.placed(4 * stride),
            64,
        )
        for stride in (1, 4)
    ]
    assert [found.latency for found in at_once] == pytest.approx([step, 2 * step])


def test_parts_that_differ_are_counted_before_they_are_sent():
    world = World("2xtrn2.48xlarge", 4)
    group = (tuple(range(4)),)
    even = world.cost(Collective("all_to_all", group), 1 << 20)
    parts = Collective("all_to_all", group, gives=(1 << 16,) * 4, takes=(1 << 16,) * 4)
    uneven = world.cost(parts, 1 << 20)
    assert uneven.latency == pytest.approx(2 * even.latency)
    assert uneven.seconds == pytest.approx(even.seconds + world.network.costs.network_step.value * 1e-9, rel=1e-3)
    assert (uneven.loads >= even.loads).all()
    one = Collective("all_to_all", group, gives=(0, 8, 0, 0), takes=(0, 0, 0, 8))  # a permutation: sizes are known
    assert world.cost(one, 32).latency == pytest.approx(even.latency)
