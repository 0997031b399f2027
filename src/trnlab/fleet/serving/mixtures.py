# SPDX-License-Identifier: Apache-2.0
"""Networks of experts in programs that serve: which experts a rank reads, and what they compute.

All ranks of a copy have every row, as after attention. Each has its experts, or its part of their columns, and what
the ranks have adds up (NxD Inference divides experts so, too). A decoding step takes all its rows through each expert
that is met, and weighs what does not belong there by 0, since reading an expert takes longer than computing with few
rows. A prompt sends its rows to buffers of the experts and back; at which place a row stands is given.

E experts, k of them active for a token, n read by a rank, C places of each, F columns of an expert on a rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from trnlab.fleet.layers.experts import chosen
from trnlab.fleet.layers.sizes import Experts
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import DType, float32, int32

DRAWS = 64  # of a router that is even and blind, of which the mean of the fullest rank is taken


@cache
def met(experts: int, active: int, tokens: int, ranks: int) -> tuple[int, int]:
    """Different experts that the rank with most of them meets for so many tokens, and rows of the fullest expert, as
    the mean of draws: each token takes `active` experts, all equally likely, whatever the others took. Rounded up."""
    random, each = np.random.default_rng(0), experts // ranks
    read, rows = [], []
    for _ in range(DRAWS):
        keys = random.random((tokens, experts))
        taken = (
            np.argpartition(keys, active - 1, axis=1)[:, :active] if active < experts else np.argsort(keys, axis=1)
        )
        counts = np.bincount(taken.ravel(), minlength=experts)
        read.append(int((counts.reshape(ranks, each) > 0).sum(axis=1).max()))
        rows.append(int(counts.max()))
    return int(np.ceil(np.mean(read))), int(np.ceil(np.mean(rows)))


@dataclass(frozen=True)
class Matrix:
    """A weight [K, N] in the format of products, and the scale of each column where it is kept in a byte an element:
    products are of bfloat16, and what they give is scaled in float32."""

    b: GraphBuilder
    form: DType
    weight: Value
    scale: Value | None = None

    def columns(self, first: int, last: int) -> Matrix:
        """Some of its columns."""
        scale = None if self.scale is None else self.b.slice_dim(self.scale, 0, first, last)
        return Matrix(self.b, self.form, self.b.slice_dim(self.weight, 1, first, last), scale)

    def rows(self, first: int, last: int) -> Matrix:
        """Some of its rows."""
        return Matrix(self.b, self.form, self.b.slice_dim(self.weight, 0, first, last), self.scale)

    def times(self, x: Value) -> Value:
        """x [rows, K] times it."""
        if self.scale is None:
            return self.b.dot_general(x, self.weight, ((1,), (0,)), dt=self.form)
        y = self.b.dot_general(x, self.weight, ((1,), (0,)), dt=float32)
        return self.b.convert(self.b.multiply(y, self.b.broadcast_in_dim(self.scale, y.shape, (1,))), self.form)


class ProgramLayers(Protocol):
    """What of the layers of a program is needed here."""

    @property
    def b(self) -> GraphBuilder:
        """Where ops are appended."""
        ...

    @property
    def form(self) -> DType:
        """Format of weights and what is computed."""
        ...

    def weight(self, name: str, *shape: int) -> Value:
        """An input."""
        ...

    def matrix(self, name: str, rows: int, columns: int) -> Matrix:
        """A weight as products read it."""
        ...


class Mixture:
    """One layer's experts on a rank: `here` of them, of which `read` are met, with `columns` of each."""

    def __init__(self, layers: ProgramLayers, name: str, experts: Experts, share: tuple[int, int, int, int]) -> None:
        self.layers, self.name, self.experts = layers, name, experts
        self.here, self.read, self.room, self.columns = share

    def _routed(self, y: Value) -> tuple[list[Value], list[Value], Value]:
        """The experts that rows y [T, H] go to, see `experts.chosen`. Columns of the router are in an order of the
        rank's own, in which its experts come first."""
        b, router = self.layers.b, self.layers.weight(self.name + "_router", y.shape[1], self.experts.count)
        logits = b.convert(b.dot_general(y, router, ((1,), (0,))), float32)
        return chosen(b, logits, self.experts.active)

    def of_batch(self, y: Value) -> Value:
        """Rows y [T, H] -> this rank's part of their sum [T, H]: all through each expert that is read."""
        b, rows = self.layers.b, y.shape[0]
        hits, tops, total = self._routed(y)
        weights = b.multiply(b.convert(hits[0], float32), tops[0])
        for hit, top in zip(hits[1:], tops[1:]):
            weights = b.add(weights, b.multiply(b.convert(hit, float32), top))
        mine = b.slice_dim(b.divide(weights, total), 1, 0, self.read)
        inner = b.convert(b.reshape(self._opened(y, 0, self.read), (rows, self.read, self.columns)), float32)
        scaled = b.multiply(inner, b.broadcast_in_dim(mine, inner.shape, (0, 1)))
        flat = b.reshape(b.convert(scaled, self.layers.form), (rows, self.read * self.columns))
        return self._weight("down", y.shape[1]).rows(0, self.read * self.columns).times(flat)

    def of_prompt(self, y: Value) -> Value:
        """The same of a prompt, each row through its own experts."""
        b, (rows, hidden), active = self.layers.b, y.shape, self.experts.active
        _, tops, total = self._routed(y)
        weights = b.divide(b.concatenate(tops, 1), total)
        token = b.input(self.name + "_token", (self.read * self.room,), int32)
        places = b.input(self.name + "_places", (rows, active), int32)
        sent = b.take_rows(y, token)
        came = [self._one(b.slice_dim(sent, 0, e * self.room, (e + 1) * self.room), e) for e in range(self.read)]
        nothing = b.convert(b.broadcast_to(b.constant(0.0, float32), (1, hidden)), self.layers.form)
        buffer = b.concatenate([*came, nothing], 0)  # the last row is of what other ranks compute
        back = b.convert(b.take_rows(buffer, places), float32)
        summed = b.reduce(b.multiply(back, b.broadcast_in_dim(weights, back.shape, (0, 1))), (1,))
        return b.convert(summed, self.layers.form)

    def _one(self, y: Value, e: int) -> Value:
        """Rows of one expert [C, H], through it."""
        first = e * self.columns
        down = self._weight("down", y.shape[1]).rows(first, first + self.columns)
        return down.times(self._opened(y, e, e + 1))

    def _opened(self, y: Value, first: int, last: int) -> Value:
        """Rows y [T, H] between the products of experts `first` to `last`: [T, F (last - first)]."""
        b, hidden = self.layers.b, y.shape[1]

        def product(part: str) -> Value:
            return self._weight(part, hidden).columns(first * self.columns, last * self.columns).times(y)

        return b.multiply(b.silu(product("gate")), product("up")) if self.experts.gated else b.gelu(product("up"))

    def _weight(self, part: str, hidden: int) -> Matrix:
        """Weight of all experts of the rank beside each other: gate and up [H, here F], down [here F, H]."""
        wide = self.here * self.columns
        shape = (wide, hidden) if part == "down" else (hidden, wide)
        return self.layers.matrix(f"{self.name}_{part}", *shape)
