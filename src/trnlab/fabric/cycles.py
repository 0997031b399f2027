# SPDX-License-Identifier: Apache-2.0
"""Ways around some chips, for rings: Hamiltonian cycles over direct links that share no link.

The vendor runs several rings with mutually exclusive wires in parallel, two cycles on a whole 4 x 4 torus
(neuron-runtime/explore/intranode-collective-comm.rst). Which two is not published; these are found by search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

Links = frozenset[tuple[int, int]]
_EFFORT, _TRIES = 20_000, 20  # steps of one search and cycles to begin with: far more than 4 x 4 needs


@lru_cache(maxsize=256)
def cycles(chips: tuple[int, ...], links: Links) -> tuple[tuple[int, ...], ...]:
    """Cycles through all `chips` over `links` (both directions of each are in it) that share no link.

    Both directions of a cycle are two rings. One chip or none has none; where no cycle exists the chips themselves,
    in order, are the only ring: its steps are routed.
    """
    if len(chips) < 2:
        return (chips,)
    inside = frozenset((a, b) for a, b in links if a in chips and b in chips and a != b)
    found = _disjoint(chips, inside)
    if not found:
        return (chips, tuple(reversed(chips))) if len(chips) > 2 else (chips,)
    return tuple(way for cycle in found for way in ((cycle, _reversed(cycle)) if len(chips) > 2 else (cycle,)))


def _disjoint(chips: tuple[int, ...], links: Links) -> list[tuple[int, ...]]:
    """As many cycles without common links as the first few cycles leave room for."""
    best: list[tuple[int, ...]] = []
    most = min(sum(1 for a, _ in links if a == chip) for chip in chips) // 2
    for tried, first in enumerate(_search(chips, links)):
        found = [first]
        left = _without(links, first)
        while (more := next(_search(chips, left), None)) is not None:
            found.append(more)
            left = _without(left, more)
        best = max(best, found, key=len)
        if len(best) >= max(most, 1) or tried == _TRIES:
            break
    return best


def _without(links: Links, cycle: tuple[int, ...]) -> Links:
    used = {pair for a, b in zip(cycle, (*cycle[1:], cycle[0])) for pair in ((a, b), (b, a))}
    return links - used


def _reversed(cycle: tuple[int, ...]) -> tuple[int, ...]:
    return (cycle[0], *reversed(cycle[1:]))


def _search(chips: tuple[int, ...], links: Links) -> Iterator[tuple[int, ...]]:
    """Hamiltonian cycles from the first chip, those first that visit chips with few ways out early."""
    ways: Mapping[int, list[int]] = {chip: sorted(b for a, b in links if a == chip) for chip in chips}
    path, on_path = [chips[0]], {chips[0]}
    stack = [iter(_next(ways, chips[0], on_path))]
    for _ in range(_EFFORT):
        if not stack:
            return
        chip = next(stack[-1], None)
        if chip is None:
            stack.pop()
            on_path.discard(path.pop())
            continue
        path.append(chip)
        on_path.add(chip)
        if len(path) == len(chips):
            if chips[0] in ways[chip]:
                yield tuple(path)
            on_path.discard(path.pop())
            continue
        stack.append(iter(_next(ways, chip, on_path)))


def _next(ways: Mapping[int, list[int]], chip: int, on_path: set[int]) -> list[int]:
    free = [way for way in ways[chip] if way not in on_path]
    return sorted(free, key=lambda way: (sum(1 for other in ways[way] if other not in on_path), way))
