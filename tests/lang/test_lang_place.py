# SPDX-License-Identifier: Apache-2.0
"""Tiles that live at the same time never share bytes, and memory is filled before a kernel is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnlab.lang.placement import Demand, DoesNotFitError, _Placer, place

LIVES = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(LIVES)
def test_no_two_living_tiles_overlap(lives):
    demands = [Demand(i, f"t{i}", size, first, first + length) for i, (size, first, length) in enumerate(lives)]
    where = place(demands, limit=40 * 320)
    for a in demands:
        for b in demands[: a.id]:
            together = a.first <= b.last and b.first <= a.last
            apart = where[a.id] + a.size <= where[b.id] or where[b.id] + b.size <= where[a.id]
            assert apart or not together


def test_neighbours_in_time_get_different_bytes_while_there_is_room():
    demands = [Demand(i, "t", 64, i, i) for i in range(4)]
    assert place(demands, limit=256) == {0: 0, 1: 64, 2: 128, 3: 192}
    assert place(demands, limit=128) == {0: 0, 1: 64, 2: 0, 3: 64}


def test_fragments_are_packed_before_anything_is_refused():
    demands = [
        Demand(0, "a", 64, 0, 9),
        Demand(1, "b", 64, 0, 1),
        Demand(2, "c", 64, 2, 9),
        Demand(3, "d", 128, 3, 4),
    ]
    assert max(place(demands, limit=256).values()) <= 128


def test_a_tile_with_an_address_is_left_where_it_is():
    demands = [Demand(0, "fixed", 64, 0, 5, address=0), Demand(1, "free", 64, 2, 3)]
    assert place(demands, limit=128)[1] == 64


def test_what_does_not_fit_names_the_tiles_in_the_way():
    demands = [Demand(0, "big", 100, 0, 5), Demand(1, "late", 64, 1, 2)]
    with pytest.raises(DoesNotFitError) as caught:
        place(demands, limit=128)
    assert caught.value.demand.name == "late"
    assert [d.name for d in caught.value.alive] == ["big"]


def test_small_tiles_go_round_a_part_where_memory_is_packed():
    """One after the other, 64 bytes each: within the reach, and no two neighbours in time at one place."""
    tiles = [Demand(n, f"t{n}", 64, n, n) for n in range(20)]
    near = list(_Placer(16384, 64, 1024).run(tiles).values())
    assert near[:17] == [64 * n for n in range(16)] + [0]
    assert set(_Placer(16384, 64, 0).run(tiles).values()) == {0}
