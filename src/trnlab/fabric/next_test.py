# SPDX-License-Identifier: Apache-2.0
"""Which test comes next, where one table leaves doubt: the one whose outcomes differ most among what is suspected.

Alike parts of the likeliest suspect are halved: sends between pairs of ranks whose data take the one half of them and
not the other. Suspects of different kinds are told apart by another collective, or by one of a single instance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from trnlab.fabric.nccom import OPERATIONS, Bench
from trnlab.fabric.network import Network
from trnlab.fabric.suspects import PARTS, Suspect
from trnlab.units import KIB, MIB

SIZES = (8 * KIB, MIB, 64 * MIB)
HALVED_AT = 64 * MIB  # bytes of each pair: as good as all time is the slowest link's
APART = 3.0  # times the spread that outcomes should differ by
Pair = tuple[int, int]


@dataclass(frozen=True)
class NextTest:
    """What to run, and what it takes by what is suspected."""

    command: str
    size: int
    outcomes: tuple[tuple[str, float], ...]  # microseconds
    pairs: tuple[Pair, ...] = ()  # of --custom-src-target-pairs
    others: tuple[Pair, ...] = ()  # of the test after it, of the other parts
    after: str = "where it is another"  # when that comes

    @property
    def text(self) -> str:
        """As lines."""
        told = [f"{microseconds:.1f} us: {what}" for what, microseconds in self.outcomes]
        files = [("pairs.json", self.pairs), (f"then, {self.after}, pairs.json", self.others)]
        known = [f"{name}: {_file(pairs)}" for name, pairs in files if pairs]
        lines = [*known[:1], *told, *known[1:]]
        return "\n".join([f"next: {self.command}", *(f"  {line}" for line in lines)])

    def as_json(self) -> dict[str, object]:
        """For programs."""
        outcomes = [{"what": what, "expected(us)": microseconds} for what, microseconds in self.outcomes]
        said = {"command": self.command, "size(B)": self.size, "outcomes": outcomes}
        return {**said, "pairs": [list(pair) for pair in self.pairs], "others": [list(pair) for pair in self.others]}


def _file(pairs: Sequence[Pair]) -> str:
    return json.dumps({"src_target_pairs": [[list(pair) for pair in pairs]]})


def proposed(
    bench: Bench, suspects: Sequence[Suspect], well: float, spread: float, baseline: bool
) -> NextTest | None:
    """The test to run next; None where nothing is in doubt, or no test of the tool tells more.

    `well`: how likely a healthy network is. `spread`: what a healthy table is off by itself. `baseline`: whether
    there was one.
    """
    leading = suspects[0] if suspects else None
    if leading is not None and leading.share > max(well, 0.5):
        parts = [each for each in (leading.both or (leading,)) if each.kind in PARTS and len(each.parts) > 1]
        halved = (_halved(bench, each) for each in parts)
        return next((test for test in halved if test is not None), None)
    return _telling(bench, suspects, well, spread) or (None if baseline else _baseline(bench))


def of_unseen(bench: Bench, unseen: Sequence[Suspect], spread: float) -> NextTest | None:
    """A test that shows what this one does not: sends that have nothing but such parts in their way."""
    for each in unseen:
        test = _halved(bench, each)
        if test is not None:
            (_, sick), (_, well) = test.outcomes
            if float(np.log(sick / well)) > APART * spread:
                named = test.outcomes[0][0].removeprefix("it is ").removeprefix("one of ")
                outcomes = (f"a slow one is among {named}", sick), ("none of these is slow", well)
                return replace(test, outcomes=outcomes, after="for the others")
    return None


def _baseline(bench: Bench) -> NextTest:
    return NextTest("the same test on a day when all is well, for --baseline", 0, ())


# -- suspects of different kinds ------------------------------------------------------------------------------------
def _telling(bench: Bench, suspects: Sequence[Suspect], well: float, spread: float) -> NextTest | None:
    """The collective and size at which the two likeliest networks differ most."""
    known: list[tuple[str, float, Network]] = [("a healthy network", well, bench.network)]
    known += [(s.text, s.share, s.network) for s in suspects if s.network is not None]
    likely = sorted(known, key=lambda each: -each[1])[:2]
    if len(likely) < 2:
        return None
    best: NextTest | None = None
    apart = APART * spread
    for command, other in _others(bench):
        for size in SIZES:
            times = [replace(other, network=network).row(size).microseconds for _, _, network in likely]
            if abs(float(np.log(times[0] / times[1]))) > apart:
                apart = abs(float(np.log(times[0] / times[1])))
                outcomes = tuple((what, time) for (what, _, _), time in zip(likely, times))
                best = NextTest(f"{command} -b {size} -e {size} -d {bench.dtype}", size, outcomes)
    return best


def _others(bench: Bench) -> Iterator[tuple[str, Bench]]:
    """Other collectives of the same ranks, and the same of one instance."""
    ranks, instances = len(bench.placed), bench.network.cluster.instances
    for name in ("allr", "allg", "alltoall"):
        made = replace(bench, operation=OPERATIONS[name], pairs=())
        if made.operation != bench.operation:
            yield f"nccom-test {name} -r {ranks} -N {instances}", made
        if instances > 1 and len(bench.groups) == 1:
            alone = [list(range(ranks // instances))]
            yield f"nccom-test {name} -r {ranks // instances} -N 1", replace(made, groups=alone)


# -- alike parts ----------------------------------------------------------------------------------------------------
def _halved(bench: Bench, suspect: Suspect) -> NextTest | None:
    """Sends that take half of the alike parts, or nearly as many, and none of the others."""
    every = range(len(suspect.parts))
    ways = _ways(bench, suspect, every)
    half = list(ways)[: max(len(suspect.parts) // 2, 1)]
    if not half:
        return None
    pairs = tuple(ways[place] for place in half)
    sends = replace(bench, operation="permute", pairs=pairs)
    sick = bench.network.with_rates(dict.fromkeys(suspect.numbers[half[0]], suspect.severity))
    times = [replace(sends, network=network).row(HALVED_AT).microseconds for network in (sick, bench.network)]
    command = (
        f"nccom-test permute -r {len(bench.placed)} -b {HALVED_AT} -e {HALVED_AT} -d {bench.dtype} "
        "--custom-src-target-pairs pairs.json"
    )
    names = ", ".join(suspect.parts[place] for place in half)
    outcomes = (f"it is one of {names}" if len(half) > 1 else f"it is {names}", times[0]), ("another", times[1])
    others = _ways(bench, suspect, [place for place in every if place not in half])
    return NextTest(command, HALVED_AT, outcomes, pairs, tuple(others.values()))


def _ways(bench: Bench, suspect: Suspect, wanted: Sequence[int]) -> dict[int, Pair]:
    """For the wanted parts by place: a pair of ranks whose data take this part and no other. No rank sends or
    receives twice, so that there may be none for some."""
    sends, receives = _free(bench), _free(bench)
    owner = {link: place for place, numbers in enumerate(suspect.numbers) for link in numbers}
    found: dict[int, Pair] = {}
    for a, b in _neighbours(bench.network, sorted(sends), suspect.kind):
        links, _ = bench.network.routes(np.array([[a, b]]))
        taken = {owner[link] for link in links.tolist() if link in owner}
        alone = len(taken) == 1 and (suspect.kind == "rail" or len(links) == 1)
        if alone and taken & set(wanted) - set(found) and sends[a] and receives[b]:
            found[taken.pop()] = sends[a].pop(), receives[b].pop()
    return dict(sorted(found.items()))


def _free(bench: Bench) -> dict[int, list[int]]:
    """The ranks on each chip."""
    ranks: dict[int, list[int]] = {}
    for rank, chip in enumerate(bench.placed.tolist()):
        ranks.setdefault(chip, []).append(rank)
    return ranks


def _neighbours(network: Network, chips: Sequence[int], kind: str) -> Iterator[Pair]:
    """Pairs of chips of the first instance; or equal chips of the first two instances."""
    each = network.cluster.target.chips
    mine = [chip for chip in chips if chip < each]
    if kind == "rail":
        return ((chip, chip + each) for chip in mine if chip + each in chips)
    return permutations(mine, 2)
