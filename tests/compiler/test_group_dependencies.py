# SPDX-License-Identifier: Apache-2.0
"""What groups wait for, against a plain search through the same edges, while groups are added and merged."""

from __future__ import annotations

import random

import pytest

from trnlab.compiler.fusing.dependencies import GroupDependencies


class Searched:
    """The edges of the groups that are left, and searches through them."""

    def __init__(self) -> None:
        self.edges: set[tuple[int, int]] = set()
        self.groups: list[int] = []

    def before(self, group: int) -> set[int]:
        found, ends = set(), [group]
        while ends:
            end = ends.pop()
            more = {a for a, b in self.edges if b == end} - found
            found |= more
            ends += more
        return found

    def merge(self, gone: int, into: int) -> None:
        renamed = {gone: into}
        edges = {(renamed.get(a, a), renamed.get(b, b)) for a, b in self.edges}
        self.edges = {(a, b) for a, b in edges if a != b}
        self.groups.remove(gone)


def as_set(bits: int) -> set[int]:
    return {n for n in range(bits.bit_length()) if bits >> n & 1}


@pytest.mark.parametrize("seed", range(40))
def test_groups_wait_for_what_a_search_finds(seed):
    rng, known, searched = random.Random(seed), GroupDependencies(), Searched()
    for number in range(40):
        known.new()
        searched.groups.append(number)
        for _ in range(rng.randrange(4)):
            a, b = rng.sample(searched.groups, 2) if len(searched.groups) > 1 else (number, number)
            if a != b and b not in searched.before(a):
                known.require(known.upto(a), b)
                searched.edges.add((a, b))
        if number > 3 and rng.random() < 0.4:
            a, b = rng.sample(searched.groups, 2)
            if not (known.between(a, b) or known.between(b, a)):
                known.merge(a, b)
                searched.merge(a, b)
        for group in searched.groups:
            assert as_set(known.of(group)) & {*searched.groups} == searched.before(group)
            assert as_set(known.upto(group)) >= {group}
        a, b = rng.choices(searched.groups, k=2)
        assert known.runs_before(a, b) == (a in searched.before(b))
        assert known.between(a, b) == any(a in searched.before(g) for g in searched.before(b))
