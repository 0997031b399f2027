# SPDX-License-Identifier: Apache-2.0
"""All layouts of a training on a cluster: why some cannot be, and what the others take.

Programs of small tensor groups are large and take long to compile, so that groups are compiled from the largest down,
as long as what smaller ones could be at best (`HOPE`) might beat the best so far. Microbatches of several sequences
first count as that many of one, which never makes them too good; those of few tokens that come near the best are then
compiled as they are. Contexts are divided in so few parts that
each keeps `TOKENS`, unless a number is given. What is compiled depends on the question alone, never on what was asked
before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from trnlab.fabric.cluster import Cluster
from trnlab.fleet.arrays import Bools, Floats
from trnlab.fleet.frames import Frame
from trnlab.fleet.layout import RECOMPUTE, ZERO, Layout, Layouts, obstacles
from trnlab.fleet.parts import Parts, Piece, Training, pieces_of
from trnlab.fleet.steps import Planner, Step, Steps

MICROBATCHES = (1, 2, 4, 8, 16, 32)
INTERLEAVES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16)
NEAR = 1.03  # times the best: microbatches of several sequences that are compiled
TOKENS = 8192  # of a microbatch, beyond which more of them gain nothing that a program would show
HOPE = 0.95  # of the work of a larger group, for the same share of it
TOO_LARGE = "does not fit in memory"


@dataclass(frozen=True)
class Least:
    """The layout whose weights, gradients and optimizer's state are least. bytes: of them, on the fullest rank; room:
    bytes that it has."""

    layout: Layout
    bytes: int
    room: int

    @property
    def lacks(self) -> int:
        """Bytes that are missing for those alone; not above 0 where there is room for them, and perhaps the rest."""
        return self.bytes - self.room


@dataclass
class Found:
    """Steps that fit; how many layouts were looked at, and how many fell to which reason.

    nearest: of the layouts that are too large, the one that lacks least; None where no layout came so far. least:
    what is at least needed, where nothing was compiled since nothing can fit.
    """

    steps: Steps | None = None
    looked_at: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    nearest: Step | None = None
    least: Least | None = None


def search(planner: Planner, training: Training, fixed: Mapping[str, int] | None = None) -> Found:
    """Look at every layout of the planner's cluster. fixed: values of columns of `Layouts` that are given."""
    found = Found()
    layouts = _possible(found, planner, training, fixed or {})
    if not len(layouts):
        return found
    least = planner.least(training, layouts)
    small = least <= planner.room
    found.refused[TOO_LARGE] += int((~small).sum())
    if small.any():
        _settle(found, Rounds(planner, training, layouts.take(small)).run())
    else:
        found.least = _least(planner, layouts, least)
    found.refused += Counter()  # drops reasons of none
    return found


def least(planner: Planner, training: Training, fixed: Mapping[str, int]) -> Least | None:
    """What is at least needed on the planner's cluster; None where no layout is possible there. Compiles nothing."""
    layouts = _possible(Found(), planner, training, fixed)
    return _least(planner, layouts, planner.least(training, layouts)) if len(layouts) else None


def _least(planner: Planner, layouts: Layouts, sizes: Floats) -> Least:
    rows = np.flatnonzero(sizes == sizes.min())
    nearest = int(rows[layouts["overlap"][rows].argmax()])
    return Least(layouts.layout(nearest), int(sizes[nearest]), planner.room)


def _possible(found: Found, planner: Planner, training: Training, fixed: Mapping[str, int]) -> Layouts:
    """Layouts that nothing stands in the way of but memory; the others are counted."""
    layouts = every(planner.cluster, training, fixed)
    found.looked_at += len(layouts)
    free = np.ones(len(layouts), np.bool_)
    why = obstacles(layouts, training.model, planner.cluster, training.batch, training.sequence)
    for reason, rows in why.items():
        found.refused[reason] += len(rows)
        free[rows] = False
    return layouts.take(free)


def _settle(found: Found, steps: Steps) -> None:
    fits = steps.memory <= steps.room
    found.refused[TOO_LARGE] += int((~fits).sum())
    if fits.any():
        found.steps = steps.take(fits)
    else:
        found.nearest = steps.step(int(steps.memory.argmin()))


@dataclass
class Rounds:
    """Costs of shares, compiled as far as they matter."""

    planner: Planner
    training: Training
    layouts: Layouts
    compiled: dict[Piece, Parts] = field(default_factory=dict)
    fits: bool = False  # whether any layout of those that are compiled does

    def run(self) -> Steps:
        """The steps of all layouts."""
        pieces = {piece._replace(microbatch=1) for piece in self._frame.pieces[0]}
        tensors = sorted({piece.tensor for piece in pieces}, reverse=True)
        for i, tensor in enumerate(tensors):
            if i and self._hopeful({piece for piece in pieces if piece.tensor <= tensor}) is None and self.fits:
                break
            self._group({piece for piece in pieces if piece.tensor == tensor})
        steps = self._steps(self._frame)
        near = self._near(steps)
        for piece in near:
            self._compile(piece)
        return self._steps(self._frame) if near else steps

    @cached_property
    def _frame(self) -> Frame:
        return self.planner.frame(self.training, self.layouts)

    def _group(self, pieces: set[Piece]) -> None:
        """Those of one tensor group: the one that needs least memory, then the most hopeful as long as one is."""
        self._compile(min(pieces, key=_least_memory))
        while (piece := self._hopeful(pieces)) is not None:
            self._compile(piece)

    def _compile(self, piece: Piece) -> None:
        self.compiled[piece] = self.planner.parts(self.training, piece)

    def _hopeful(self, pieces: set[Piece]) -> Piece | None:
        """Which of these, not compiled, has the layout that might be better than all that are."""
        steps = self._steps(self._foremost, HOPE)
        total = np.where(steps.memory <= steps.room, steps.total, np.inf)
        found, which = self._foremost.pieces
        whole = [piece._replace(microbatch=1) for piece in found]
        known = np.array([piece in self.compiled for piece in whole])[which]
        asked = np.array([piece in pieces and piece not in self.compiled for piece in whole])[which]
        hoped = np.where(asked, total, np.inf)
        self.fits = self.fits or bool(total[known].min(initial=np.inf) < np.inf)
        better = hoped.min(initial=np.inf) < total[known].min(initial=np.inf)
        return whole[int(which[hoped.argmin()])] if better else None

    @cached_property
    def _foremost(self) -> Frame:
        """Of each tensor group those that overlap what can be, with the smallest microbatches: in the first round
        none of its others beats them."""
        x = self.layouts
        tensors, which = np.unique(x["tensor"], return_inverse=True)
        least = np.array([x["microbatch"][which == i].min() for i in range(len(tensors))])
        return self._frame.take((x["overlap"] == x["overlap"].max()) & (x["microbatch"] == least[which]))

    def _near(self, steps: Steps) -> list[Piece]:
        """Microbatches of several sequences that come near the best."""
        tokens = self.layouts["microbatch"] * self.training.sequence // self.layouts["context"]
        few = (self.layouts["microbatch"] > 1) & (tokens <= TOKENS)
        fits: Bools = steps.memory <= steps.room
        near = few & fits & (steps.total < NEAR * steps.total[fits].min(initial=np.inf))
        found, which = self._frame.pieces
        some = set(which[near].tolist())
        return [piece for i, piece in enumerate(found)
                if i in some and piece._replace(microbatch=1) in self.compiled]  # fmt: skip

    def _steps(self, frame: Frame, hope: float = 1.0) -> Steps:
        return self.planner.framed(frame, {piece: self._parts(piece, hope) for piece in frame.pieces[0]})

    def _parts(self, piece: Piece, hope: float) -> Parts:
        if piece in self.compiled:
            return self.compiled[piece]
        if piece.microbatch > 1:
            return self._parts(piece._replace(microbatch=1), hope).larger(piece.microbatch)
        near = min(
            (other for other in self.compiled if other.microbatch == 1), key=lambda other: _apart(piece, other)
        )
        found = self.compiled[near]
        if piece._replace(again=near.again, sharded=near.sharded) == near:
            return replace(found, exact=False)  # what is made again costs time, and saves next to nothing; sums, too
        if piece.context != near.context:
            found = found.larger(near.context / piece.context)
        return found.divided(piece.tensor / near.tensor, hope)


def _apart(piece: Piece, other: Piece) -> tuple[float, ...]:
    ratios = (piece.tensor / other.tensor, piece.context / other.context, piece.expert / other.expert)
    return (*(abs(math.log2(ratio)) for ratio in ratios), piece.sharded != other.sharded, piece.again != other.again)


def every(cluster: Cluster, training: Training, fixed: Mapping[str, int]) -> Layouts:
    """All layouts of all ranks of a cluster, and of `fixed` also such as are impossible."""
    ranks = cluster.ranks
    choices = {
        "tensor": _divisors(min(ranks, cluster.target.chips * cluster.ranks_per_chip)),
        "pipeline": _divisors(ranks, training.model.layers), "microbatch": MICROBATCHES, "interleave": INTERLEAVES,
        "zero": ZERO, "recompute": range(len(RECOMPUTE)), "overlap": (0, 1),
        "context": _divisors(ranks, max(training.sequence // TOKENS, 1)),
        "expert": _divisors(max(training.model.experts, 1)),
    }  # fmt: skip
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


def shares_of(planner: Planner, training: Training, fixed: Mapping[str, int]) -> list[tuple[Piece]]:
    """What a search on the planner's cluster may ask `Planner.parts` for, besides the training, in about the order in
    which it does."""
    layouts = _possible(Found(), planner, training, fixed)
    pieces = {piece._replace(microbatch=1) for piece in pieces_of(layouts)[0]}
    plain = {piece.tensor for piece in pieces if not (piece.again or piece.sharded)}
    likely = [piece for piece in pieces if not (piece.again or piece.sharded) or piece.tensor not in plain]
    return [(piece,) for piece in sorted(likely, key=lambda piece: (-piece.tensor, *_least_memory(piece)))]


def _least_memory(piece: Piece) -> tuple[bool, bool, int, int]:
    """Of the pieces of a tensor group the one that sorts first is compiled first."""
    return piece.again, piece.sharded, piece.context, -piece.expert
