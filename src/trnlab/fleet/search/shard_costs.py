# SPDX-License-Identifier: Apache-2.0
"""What is trained, and what the shares of a model cost that layouts are put together from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from trnlab.fleet.arrays import Floats, Ints, distinct
from trnlab.fleet.costs.programs import MicrobatchCost
from trnlab.fleet.models.transformer import Model
from trnlab.fleet.search.layout import RECOMPUTE, Layouts
from trnlab.numerics.dtypes import dtype, float32

FULL = RECOMPUTE.index("full")
NOTHING = MicrobatchCost()
MASTER, MOMENTS = 4, 8  # bytes for each parameter, in float32: what a weight is rounded from; AdamW's mean and square
FIGURES = tuple(f.name for f in fields(MicrobatchCost))


@dataclass(frozen=True)
class Training:
    """What is trained: sequences of so many tokens, so many in a step. form: what weights and activations are kept,
    gathered and sent in."""

    model: Model
    batch: int
    sequence: int
    form: str = "bfloat16"

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.sequence

    @property
    def width(self) -> int:
        """Bytes of a weight, and of an activation."""
        return dtype(self.form).itemsize

    @property
    def rounded(self) -> bool:
        """Whether weights are rounded from others in float32, which are kept as well; else they are those."""
        return self.width < float32.itemsize

    @property
    def state(self) -> int:
        """Bytes of a parameter in a checkpoint: its weight, what that is rounded from, AdamW's mean and square."""
        return self.width + (MASTER if self.rounded else 0) + MOMENTS


class ShardKey(NamedTuple):
    """What of a layout decides its programs: ranks that share a layer, sequences at a time, ranks that share a
    sequence and experts, what is made again (its place in RECOMPUTE), whether weights and gradients are parts that
    are gathered and spread (ZeRO-3), and how attention and networks are made (their places in NAMED)."""

    tensor: int
    microbatch: int
    context: int = 1
    expert: int = 1
    again: int = 0
    sharded: bool = False
    attention: int = 0
    network: int = 0


def shard_keys_of(layouts: Layouts) -> tuple[list[ShardKey], Ints]:
    """The pieces of layouts, each once, and [N] which one each layout has."""
    sharded = layouts["zero"] == 3
    found, which = distinct(
        layouts["tensor"],
        layouts["microbatch"],
        layouts["context"],
        layouts["expert"],
        layouts["recompute"],
        sharded.astype(np.int64),
        layouts["attention"],
        layouts["network"],
    )
    return [ShardKey(t, b, c, e, a, bool(s), at, n) for t, b, c, e, a, s, at, n in found.tolist()], which


@dataclass(frozen=True)
class ShardCosts:
    """What a share of a model costs: a layer of each kind, what precedes and follows them."""

    layers: tuple[MicrobatchCost, ...]
    first: MicrobatchCost
    last: MicrobatchCost
    exact: bool = True
    entries: tuple[MicrobatchCost, ...] = ()  # of each kind, what a stage that has some makes once for all of them
    join: MicrobatchCost = NOTHING  # what lies between an encoder and its decoder

    @cached_property
    def table(self) -> Floats:
        """[F, 2 K + 3] of each of FIGURES: of each of K kinds of layers, of what a stage of each makes once, of what
        precedes, joins and follows them."""
        entries = self.entries or (NOTHING,) * len(self.layers)
        costs = (*self.layers, *entries, self.first, self.join, self.last)
        return np.array([[getattr(cost, name) for cost in costs] for name in FIGURES], np.float64)

    def larger(self, times: float) -> ShardCosts:
        """For so many times as many sequences: what as many of one take, never less than all at once."""
        return self._each(lambda cost: cost.larger(times))

    def divided(self, by: float, optimism: float = 1.0, left: float = 1.0) -> ShardCosts:
        """Reckoned for a tensor group `by` times as large, whose work is `optimism` of what follows from this, and
        what it exchanges so much of it as is `left`."""
        return self._each(lambda cost: cost.divided(by, optimism, left))

    def remade(self, part: float) -> ShardCosts:
        """Reckoned for layers whose backward pass makes so much of the forward pass again, and nothing else."""
        layers = tuple(cost.remade(part) for cost in self.layers)
        return replace(self, layers=layers, exact=False)

    def _each(self, change: Callable[[MicrobatchCost], MicrobatchCost]) -> ShardCosts:
        layers, entries = (tuple(map(change, costs)) for costs in (self.layers, self.entries))
        return ShardCosts(layers, change(self.first), change(self.last), False, entries, change(self.join))


PartsOf = Mapping[ShardKey, ShardCosts]
