# SPDX-License-Identifier: Apache-2.0
"""A plan's times of collectives are the network's at every size, whatever bends or jumps there."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trnlab import chips
from trnlab.collectives import Collective, whole_mesh
from trnlab.fabric.choice import window_ends
from trnlab.fabric.cluster import Cluster
from trnlab.fabric.world import world_of
from trnlab.fleet.costs.exchange import Exchange, knots


def of_network(target, instances, kind, stride, count, sizes):
    cluster = Cluster(target, instances)
    asked = Collective(kind, whole_mesh(range(0, stride * count, stride), cluster.ranks))
    world = world_of(cluster.name, cluster.ranks)
    return np.array([world.cost(asked, int(nbytes)).seconds for nbytes in sizes])


@pytest.mark.parametrize(
    ("name", "instances", "stride", "count"),
    [
        ("trn1.32xlarge", 1, 1, 8),
        ("trn1.32xlarge", 4, 8, 16),
        ("trn2.48xlarge", 1, 1, 64),
        ("trn2.48xlarge", 2, 4, 32),
    ],
)
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_times_are_the_networks_between_powers_of_two_and_around_windows(name, instances, stride, count, kind):
    target = chips.target(name)
    draw = np.random.default_rng(count)
    ends = np.array(window_ends(instances))
    sizes = np.concatenate([2 ** draw.uniform(10, 36, 60), ends - 1, ends, ends + 1]).astype(np.int64)
    many = [np.full(len(sizes), number) for number in (stride, count)]
    found = Exchange(target).seconds(kind, *many, sizes.astype(np.float64))
    np.testing.assert_allclose(found, of_network(target, instances, kind, stride, count, sizes), rtol=1.5e-3)


def test_what_is_known_is_not_timed_again_and_survives_json():
    first = Exchange(chips.target("trn1.32xlarge"))
    asked = "all_reduce", np.array([1]), np.array([8]), np.array([3e6])
    seconds = first.seconds(*asked)
    again = Exchange(first.target, json.loads(json.dumps(first.known)))
    again._timed = None  # nobody may ask
    assert again.seconds(*asked) == seconds


def test_knots_are_few_and_lines_between_them_near():
    sizes = np.geomspace(1, 1e9, 500)
    seconds = np.maximum(1e-5 + sizes / 1e9, 5e-5 + sizes / 4e9) + np.where(sizes > 1e6, 1e-3, 0)
    at, value = knots(sizes, seconds)
    assert len(at) < 8
    np.testing.assert_allclose(np.interp(sizes, at, value), seconds, rtol=1.1e-3)
