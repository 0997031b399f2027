# SPDX-License-Identifier: Apache-2.0
"""All layouts of a training on a cluster: why some cannot be, and what the others take.

Layouts are compiled best first: of all that are not, the one that might be the best is, until none might be better
than the best of those that are. What is not compiled is reckoned from what is and is nearest, at best with what
`SearchRounds._hope` leaves of the work of another group, which is assumed, and without what a microbatch takes
however large it is; each program corrects what is reckoned from it. So the layout of choice is always compiled as it
is. Where a step is one program, that is compiled as well (`confirmed`), takes the place of what parts add up to, and
the search goes on. Of a share its layers are compiled first, of which a model has many; what precedes and follows
them only where the layout is hopeful even so.

Programs of small tensor groups are large and take long to compile, so that a search begins in the middle and comes to
others size by size; so do microbatches of many tokens, which are come to from those half as large. Contexts are
divided in so few parts that each keeps `TOKENS`, unless a number is given. What is compiled depends on the question
alone, never on what was asked before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from trnlab.fabric.cluster import Cluster
from trnlab.fleet.arrays import Bools, Floats
from trnlab.fleet.costs.programs import MicrobatchCost
from trnlab.fleet.layers.shares import FILLED
from trnlab.fleet.search.layout import RECOMPUTE, ZERO, Layout, Layouts, columns_of, obstacles
from trnlab.fleet.search.layout_terms import LayoutTerms
from trnlab.fleet.search.shard_costs import FULL, ShardCosts, ShardKey, Training, shard_keys_of
from trnlab.fleet.search.steps import PlannedStep, PlannedSteps, Planner

MICROBATCHES = (1, 2, 4, 8, 16, 32)
INTERLEAVES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16)
TOKENS = 8192  # of a microbatch, beyond which more of them are not hoped to gain
# Of the work of another group, for the same share of it: at best; of a smaller one where nothing says what a group of
# half the ranks gains. See `SearchRounds._hope`.
HOPE, FIRST_HOPE = 0.95, 0.8
BEGINS = 4  # times as many ranks an instance has as the tensor group that is compiled first
LEAST_AGAIN = 0.75  # of a forward pass: what full recomputation makes again at best
START = 512  # tokens whose work takes at most as long as what a program takes whatever its microbatch is
WORTH = 0.99  # times the best: what is hoped to gain less is not compiled; put together, steps are off by as much
TOO_LARGE = "does not fit in memory"


@dataclass(frozen=True)
class SmallestLayout:
    """The layout whose weights, gradients and optimizer's state are least."""

    layout: Layout
    bytes: int  # of them, on the fullest rank
    room: int  # bytes that it has

    @property
    def lacks(self) -> int:
        """Bytes that are missing for those alone; not above 0 where there is room for them, and perhaps the rest."""
        return self.bytes - self.room


@dataclass
class SearchResult:
    """Steps that fit; how many layouts were looked at, and how many fell to which reason."""

    steps: PlannedSteps | None = None
    looked_at: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    # of the layouts that are too large, the one that lacks least; None where no layout came so far
    nearest: PlannedStep | None = None
    least: SmallestLayout | None = None
    rounds: SearchRounds | None = None


def search(
    planner: Planner,
    training: Training,
    fixed: Mapping[str, int] | None = None,
    before: SearchRounds | None = None,
    matters: Callable[[PlannedSteps], bool] = lambda _: True,
) -> SearchResult:
    """Look at every layout of the planner's cluster. fixed: values of columns of `Layouts` that are given. before:
    the search of the same training on other instances of the target, whose shares are known. matters: see
    `SearchRounds`."""
    found = SearchResult()
    layouts = _possible(found, planner, training, fixed or {})
    if not len(layouts):
        return found
    least = planner.least(training, layouts)
    small = least <= planner.room
    found.refused[TOO_LARGE] += int((~small).sum())
    if small.any():
        found.rounds = SearchRounds(planner, training, layouts.take(small), matters=matters)
        if before is not None:
            found.rounds.compiled.update(before.compiled)
            found.rounds.begun.update(before.begun)
        _settle(found, found.rounds.run())
    else:
        found.least = _least(planner, layouts, least)
    found.refused += Counter()  # drops reasons of none
    return found


def least(planner: Planner, training: Training, fixed: Mapping[str, int]) -> SmallestLayout | None:
    """What is at least needed on the planner's cluster; None where no layout is possible there. Compiles nothing."""
    layouts = _possible(SearchResult(), planner, training, fixed)
    return _least(planner, layouts, planner.least(training, layouts)) if len(layouts) else None


def _least(planner: Planner, layouts: Layouts, sizes: Floats) -> SmallestLayout:
    rows = np.flatnonzero(sizes == sizes.min())
    nearest = int(rows[layouts["overlap"][rows].argmax()])
    return SmallestLayout(layouts.layout(nearest), int(sizes[nearest]), planner.room)


def _possible(found: SearchResult, planner: Planner, training: Training, fixed: Mapping[str, int]) -> Layouts:
    """Layouts that nothing stands in the way of but memory; the others are counted."""
    layouts = every(planner.cluster, training, fixed)
    found.looked_at += len(layouts)
    free = np.ones(len(layouts), np.bool_)
    most = math.inf if "tensor" in fixed else FILLED
    why = obstacles(layouts, training.model, planner.cluster, training.batch, training.sequence, most)
    for reason, rows in why.items():
        found.refused[reason] += len(rows)
        free[rows] = False
    return layouts.take(free)


def _settle(found: SearchResult, steps: PlannedSteps) -> None:
    fits = steps.memory <= steps.room
    found.refused[TOO_LARGE] += int((~fits).sum())
    if fits.any():
        found.steps = steps.take(fits)
    else:
        found.nearest = steps.step(int(steps.memory.argmin()))


@dataclass
class SearchRounds:
    """Costs of shares, compiled as far as they matter: the most hopeful layout's first, until the best of all is one
    that was compiled as it is, and no other might be better.

    matters: whether the best may be the answer, if steps are as short as is hoped; where it says no, nothing more is
    compiled.
    """

    planner: Planner
    training: Training
    layouts: Layouts
    compiled: dict[ShardKey, ShardCosts] = field(default_factory=dict)
    begun: dict[ShardKey, ShardCosts] = field(default_factory=dict)  # of which layers are compiled, and no ends
    wholes: dict[int, PlannedStep | None] = field(default_factory=dict)  # by row
    matters: Callable[[PlannedSteps], bool] = lambda _: True

    @property
    def pieces(self) -> list[ShardKey]:
        """The shares of all layouts."""
        return self._frame.shard_keys[0]

    def run(self) -> PlannedSteps:
        """The steps of all layouts, those that were compiled before others that take as long."""
        if not self.compiled:
            self._compile(min(self.pieces, key=_order(self.planner.cluster)))
        while (piece := self._next()) is not None:
            self._compile(self._intermediate(piece))
        steps = self._steps()
        return steps.take(np.argsort(~steps.exact, kind="stable"))

    def knows(self, layout: Layout) -> bool:
        """Whether it was asked for the whole step of a layout."""
        return self._row(layout) in self.wholes

    def learn(self, layout: Layout, step: PlannedStep | None) -> PlannedSteps:
        """The steps of all layouts, now that one is known as a whole; None where there is no such program. Compiles
        what might be better than the best that is left."""
        self.wholes[self._row(layout)] = step
        return self.run()

    def _row(self, layout: Layout) -> int:
        mine = columns_of([layout]).columns
        return int(np.logical_and.reduce([self.layouts[name] == value for name, value in mine.items()]).argmax())

    @cached_property
    def _frame(self) -> LayoutTerms:
        return self.planner.terms(self.training, self.layouts)

    def _compile(self, shard: ShardKey) -> None:
        """All of the first share, the layers of others; their ends when they are still hopeful then."""
        if shard in self.begun or not self.compiled:
            self.begun.pop(shard, None)
            self.compiled[shard] = self.planner.parts(self.training, shard)
        else:
            self.begun[shard] = self.planner.layers(self.training, shard)

    def _next(self) -> ShardKey | None:
        """The shard that is to be compiled next; None where that would change no answer."""
        hoped = self._steps(hopes=True)
        return (self._hopeful(hoped) or self._best()) if self.matters(hoped) else None

    def _hopeful(self, steps: PlannedSteps) -> ShardKey | None:
        """The shard, among those that are not compiled, of the layout which might be the best, if one might be
        better than all that are. steps: as short as is hoped."""
        total = np.where(steps.memory <= steps.room, steps.total, np.inf)
        hoped = np.where(steps.exact, np.inf, total)
        better = hoped.min() < WORTH * total[steps.exact].min(initial=np.inf)
        return self._piece(int(hoped.argmin())) if better else None

    def _best(self) -> ShardKey | None:
        """What the answer is made of, if it is not compiled: the best that fits; where nothing does, what lacks
        least."""
        steps = self._steps()
        fits = steps.memory <= steps.room
        worth = np.where(fits, steps.total, np.inf) if fits.any() else steps.memory
        best = worth.min(initial=np.inf)
        found = int(worth.argmin())
        return None if steps.exact[worth == best].any() else self._piece(found)

    def _piece(self, i: int) -> ShardKey:
        found, which = self._frame.shard_keys
        return found[int(which[i])]

    def _intermediate(self, shard: ShardKey) -> ShardKey:
        """What is compiled on the way to a shard: of tensor groups each size between it and those that are known; on
        the way to smaller ones first of all what is of its kind in the smallest that is known, which has most of its
        routines from there; of microbatches of many tokens those half as large."""
        known = {*self.compiled, *self.begun}
        sizes = [other.tensor for other in known]
        least, most = min(sizes), max(sizes)
        if shard.tensor < least:
            alike = shard._replace(tensor=least, microbatch=min(k.microbatch for k in known if k.tensor == least))
            if alike in self.pieces and alike not in known:
                return alike
            shard = self._nearest(shard, [p for p in self.pieces if shard.tensor <= p.tensor < least], least)
        elif shard.tensor > most:
            shard = self._nearest(shard, [p for p in self.pieces if most < p.tensor <= shard.tensor], most)
        while self._tokens(shard) > TOKENS:
            half = shard._replace(microbatch=shard.microbatch // 2)
            if half in known or half not in self.pieces:
                break
            shard = half
        return shard

    def _nearest(self, shard: ShardKey, between: Sequence[ShardKey], known: int) -> ShardKey:
        """The shards nearest to a size of tensor groups that is known, of those between: the same kind of share, if
        layouts have it."""
        nearest = min((other.tensor for other in between), key=lambda tensor: abs(math.log2(tensor / known)))
        own, first = shard._replace(tensor=nearest), _order(self.planner.cluster)
        return own if own in between else min((other for other in between if other.tensor == nearest), key=first)

    def _tokens(self, shard: ShardKey) -> int:
        return shard.microbatch * self.training.sequence // shard.context

    def _steps(self, hopes: bool = False) -> PlannedSteps:
        steps = self.planner.steps_of_terms(self._frame, {piece: self._parts(piece, hopes) for piece in self.pieces})
        for row, whole in self.wholes.items():
            if whole is not None:
                by = {name: whole.seconds[name] - float(column[row]) for name, column in steps.seconds.items()}
                steps = steps.longer(self._alike(row), by).replaced(row, whole)
        return steps

    def _alike(self, row: int) -> Bools:
        """[N] which layouts differ from one in nothing but what they make again, whose parts are off by as much."""
        names = [name for name in self.layouts.columns if name != "recompute"]
        same = np.logical_and.reduce([self.layouts[name] == self.layouts[name][row] for name in names])
        same[list(self.wholes)] = False
        return np.asarray(same)

    def _parts(self, shard: ShardKey, hopes: bool) -> ShardCosts:
        """As compiled; else reckoned from what is nearest, ends from what has some. hopes: at best."""
        if shard in self.compiled:
            return self.compiled[shard]
        if shard in self.begun:
            own, ends = self.begun[shard], self._reckoned(shard, self.compiled, hopes)
            if hopes:
                ends = replace(ends, first=_weightless(ends.first), last=_weightless(ends.last))
            return replace(ends, layers=own.layers, entries=own.entries)
        return self._reckoned(shard, (*self.compiled, *self.begun), hopes)

    def _reckoned(self, shard: ShardKey, known: Iterable[ShardKey], hopes: bool) -> ShardCosts:
        near = min(known, key=lambda other: _apart(shard, other))
        found = replace(self._parts(near, hopes), exact=False)
        if shard.context != near.context:
            found = found.larger(near.context / shard.context)
        if shard[:1] + shard[2:4] != near[:1] + near[2:4]:
            by, hope = shard.tensor / near.tensor, self._hope(shard, near) if hopes else 1.0
            left = 0.0 if shard.tensor == 1 else 1 / by if hopes and by > 1 else 1.0  # one rank exchanges nothing
            found = found.divided(by, hope, left)
        if shard.microbatch != near.microbatch:
            found = found.larger(shard.microbatch / near.microbatch)
            found = found.divided(1.0, _gain(self._tokens(near)) if hopes else 1.0)
        if shard.again != near.again and FULL in (shard.again, near.again):
            found = found.remade((LEAST_AGAIN if hopes else 1.0) if shard.again == FULL else 0.0)
        return found  # else what is made again costs time, and saves next to nothing; sums, too

    def _hope(self, shard: ShardKey, near: ShardKey) -> float:
        """The share of the work of another tensor group, at best, for as much of a layer. What each rank does of its
        own whatever the group is, such as reading what enters a product, halves with the group, so that all halvings
        to come gain no more together than the last one did."""
        if shard.tensor >= near.tensor:
            return HOPE
        known = self.begun | self.compiled
        of_half = (other for other in known if other.tensor == near.tensor)
        pairs = ((known.get(other._replace(tensor=2 * near.tensor)), known[other]) for other in of_half)
        ratio = next((self._work(double) / self._work(half) for double, half in pairs if double is not None), None)
        return FIRST_HOPE if ratio is None else min(HOPE, 2.0 - 2 * ratio)

    def _work(self, costs: ShardCosts) -> float:
        """Seconds of a rank in all layers, without what it exchanges in them."""
        each = zip(costs.layers, self.training.model.stacks)
        return sum((cost.forward + cost.backward - cost.exposed) * count for cost, (count, _) in each)


def _weightless(cost: MicrobatchCost) -> MicrobatchCost:
    """The same without memory: the least that it may need."""
    return replace(cost, saved=0, working=0, gathered=0)


def _gain(tokens: int) -> float:
    """What is left at best of the time of each sequence in microbatches larger than one of so many tokens."""
    return 1.0 if tokens >= TOKENS else tokens / (tokens + START)


def _apart(shard: ShardKey, other: ShardKey) -> tuple[float, ...]:
    """How far a compiled piece is from another: microbatches are reckoned from smaller ones, if there are any."""
    ratios = (shard.tensor / other.tensor, shard.context / other.context, shard.expert / other.expert)
    larger = math.log2(other.microbatch / shard.microbatch)
    return (
        *(abs(math.log2(ratio)) for ratio in ratios),
        larger > 0,
        abs(larger),
        shard.sharded != other.sharded,
        abs(shard.again - other.again),
    )


def every(cluster: Cluster, training: Training, fixed: Mapping[str, int]) -> Layouts:
    """All layouts of all ranks of a cluster, and of `fixed` also such as are impossible."""
    ranks = cluster.ranks
    choices = {
        "tensor": _divisors(min(ranks, cluster.target.chips * cluster.ranks_per_chip)),
        "pipeline": _divisors(ranks, training.model.layers),
        "microbatch": MICROBATCHES,
        "interleave": INTERLEAVES,
        "zero": ZERO,
        "recompute": range(len(RECOMPUTE)),
        "overlap": (0, 1),
        "context": _divisors(ranks, max(training.sequence // TOKENS, 1)),
        "expert": _divisors(max(training.model.experts, 1)),
        "attention": (0,),
        "network": (0,),
    }
    choices |= {name: (value,) for name, value in fixed.items() if name != "data"}
    axes = dict(zip(choices, np.ix_(*(np.array(values, np.int64) for values in choices.values()))))
    inner = axes["tensor"] * axes["pipeline"] * axes["context"]
    whole = (ranks % inner == 0) | bool({"tensor", "pipeline", "context", "data"} & set(fixed))
    sensible = whole & ((axes["interleave"] == 1) | (axes["pipeline"] > 1) | ("interleave" in fixed))
    shape = tuple(axis.size for axis in axes.values())
    places = np.nonzero(np.broadcast_to(sensible, shape))  # only those are made, of many times as many
    columns = {name: axis.reshape(-1)[at] for (name, axis), at in zip(axes.items(), places)}
    data = ranks // np.maximum(columns["tensor"] * columns["pipeline"] * columns["context"], 1)
    columns["data"] = np.full(len(data), fixed["data"]) if "data" in fixed else np.maximum(data, 1)
    return Layouts(columns)


def _divisors(n: int, most: int | None = None) -> list[int]:
    return [i for i in range(1, min(n, most or n) + 1) if n % i == 0]


def shards_of(planner: Planner, training: Training, fixed: Mapping[str, int]) -> list[tuple[ShardKey]]:
    """What a search on the planner's cluster may ask `Planner.parts` for, besides the training, in about the order in
    which it does."""
    pieces = shard_keys_of(_possible(SearchResult(), planner, training, fixed))[0]
    least = min((piece.microbatch for piece in pieces), default=1)
    pieces = [piece for piece in pieces if piece.microbatch == least]
    plain = {piece.tensor for piece in pieces if not (piece.again or piece.sharded)}
    likely = [piece for piece in pieces if not (piece.again or piece.sharded) or piece.tensor not in plain]
    return [(piece,) for piece in sorted(likely, key=_order(planner.cluster))]


def _order(cluster: Cluster) -> Callable[[ShardKey], tuple[float, ...]]:
    """What sorts first is compiled first: of a tensor group in the middle what needs least memory. Programs of small
    groups are large; those of large ones say little of smaller ones."""
    middle = math.log2(max(cluster.target.chips * cluster.ranks_per_chip / BEGINS, 1))

    def key(shard: ShardKey) -> tuple[float, ...]:
        away = abs(math.log2(shard.tensor) - middle)
        return away, -shard.tensor, shard.microbatch, shard.again, shard.sharded, shard.context, -shard.expert

    return key
