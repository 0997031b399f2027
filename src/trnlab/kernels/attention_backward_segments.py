# SPDX-License-Identifier: Apache-2.0
"""Attention backward for sequences that do not fit on chip: the fused kernel on pairs of a segment of queries and one
of keys, whose gradients are added up in memory, in float32.

The logarithm of the sum over all keys is known from the forward pass, so that a pair needs nothing of the others:

    P_ij = exp(s_ij - lse_i),  dQ_i = sum over j of dQ_ij,  dK_j = sum over i of dK_ij,  dV_j likewise

A pair takes as long as it takes alone, so the time grows with the number of pairs of a query and a key. Pairs that
causality hides are left out; those on the diagonal are causal themselves.

Letters: B batch, H heads, T queries, S keys, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import NamedTuple

from trnlab.isa.base import Engine
from trnlab.kernels.attention_backward import attention_backward, has_room_backward
from trnlab.kernels.attention_segments import LONGEST, length_with_room
from trnlab.kernels.attention_tiles import Task, count_blocks, load_tokens, pieces, store_tokens, token_pool
from trnlab.kernels.blocks import P, dma_store
from trnlab.kernels.view import HbmView, full
from trnlab.numerics.dtypes import float32
from trnlab.program.builder import Builder

STRIP = 1024  # tokens that are added at a time
PARTS = 2  # pairs whose gradients are on their way to the sums


class _Pair(NamedTuple):
    """Queries [q0, +rows) and keys [k0, +keys); `diagonal`: the first query sees the first key, the next one more."""

    q0: int
    rows: int
    k0: int
    keys: int
    diagonal: bool


def attention_backward_segments(
    b: Builder,
    dout: HbmView,
    q: HbmView,
    k: HbmView,
    v: HbmView,
    out: HbmView,
    lse: HbmView,
    dq: HbmView | None,
    dk: HbmView | None,
    dv: HbmView | None,
    *,
    causal: bool,
    scale: float,
    bias: HbmView | None = None,
    shifted: bool = False,
    heard: HbmView | None = None,
    dbias: HbmView | None = None,
    longest: int = LONGEST,
) -> None:
    """Record what `attention_backward` does, for sequences of any length; `longest`: most tokens of a segment.

    The same arguments and limits. Raises CapacityError where not even short segments have room.
    """
    task = Task(q, k, v, bias, causal, scale, shifted)
    length = length_with_room(b, task, longest, partial(has_room_backward, dbias=dbias))
    found = list(_pairs(task, length))
    if dbias is not None and causal:
        _hide(b, dbias, found)
    sums = [
        None if grad is None else _Sum(b, grad, name, found, of_queries=grad is dq)
        for name, grad in (("dq", dq), ("dk", dk), ("dv", dv))
    ]
    for pair in found:
        queries, keys = slice(pair.q0, pair.q0 + pair.rows), slice(pair.k0, pair.k0 + pair.keys)
        hidden = None if bias is None else bias[:, :, queries if bias.shape[2] > 1 else slice(None), keys]
        attention_backward(
            b,
            dout[:, :, queries],
            q[:, :, queries],
            k[:, :, keys],
            v[:, :, keys],
            out[:, :, queries],
            lse[:, :, queries],
            *(None if total is None else total.part(pair) for total in sums),
            causal=pair.diagonal,
            scale=scale,
            bias=hidden,
            shifted=shifted,
            heard=None if heard is None else heard[:, :, queries if heard.shape[2] > 1 else slice(None)],
            dbias=None if dbias is None else dbias[:, :, queries, keys],
        )
        for total in sums:
            if total is not None:
                total.add(pair)


def _pairs(task: Task, length: int) -> Iterator[_Pair]:
    """The pairs of which some query sees some key, by queries; causal ones are cut where the first query ends."""
    for q0, rows in pieces(0, task.queries, length):
        before, end = (min(q0, task.keys), min(q0 + rows, task.keys)) if task.causal else (task.keys, task.keys)
        for k0, keys in pieces(0, before, length):
            yield _Pair(q0, rows, k0, keys, False)
        for k0, keys in pieces(before, end, length):
            yield _Pair(q0, rows, k0, keys, True)


def _hide(b: Builder, dbias: HbmView, found: list[_Pair]) -> None:
    """Zeros for the scores that no pair has."""
    batches, heads, queries, keys = dbias.shape
    ends = {pair.q0 + pair.rows: pair.k0 + pair.keys for pair in found}  # of keys, by the ends of queries
    with b.scope():
        zeros = b.tile((P, min(STRIP, keys)), float32, name="zeros")
        b.memset(dst=zeros, value=0.0, engine=Engine.GPSIMD)
        for batch, head, (q0, n) in product(range(batches), range(heads), pieces(0, queries, P)):
            end = next(k for q, k in sorted(ends.items()) if q > q0)
            for k0, width in pieces(end, keys, STRIP):
                dma_store(b, dbias[batch, head, q0 : q0 + n, k0 : k0 + width].ap(), zeros[:n, :width])


@dataclass
class _Sum:
    """One gradient [B, H, T or S, D]: of each of its segments the first pair writes where the sum will be, the next
    ones beside it, and the last sum goes to the result."""

    b: Builder
    grad: HbmView
    name: str
    pairs: list[_Pair]
    of_queries: bool
    _turn: int = 0
    _done: dict[int, int] = field(default_factory=dict)  # pairs of a segment, by its first token

    def __post_init__(self) -> None:
        longest = max(self._range(pair)[1] for pair in self.pairs)
        self._count = {
            first: sum(self._range(p)[0] == first for p in self.pairs) for first, _ in map(self._range, self.pairs)
        }
        batch, heads, _, depth = self.grad.shape
        if max(self._count.values()) > 1:
            self._total = full(self.b.scratch(f"{self.name}_total", self.grad.shape, float32))
            shape = (PARTS, batch, heads, longest, depth)
            self._parts = full(self.b.scratch(f"{self.name}_part", shape, float32))

    def part(self, pair: _Pair) -> HbmView:
        """Where the gradient of a pair goes."""
        first, count = self._range(pair)
        tokens = slice(first, first + count)
        if self._count[first] == 1:
            return self.grad[:, :, tokens]
        if first not in self._done:
            return self._total[:, :, tokens]
        return self._parts[self._turn % PARTS][:, :, :count]

    def add(self, pair: _Pair) -> None:
        """Add what a pair left to the sum of its segment."""
        first, count = self._range(pair)
        done = self._done[first] = self._done.get(first, 0) + 1
        if done == 1:
            return
        tokens = slice(first, first + count)
        target = self.grad if done == self._count[first] else self._total
        self._fold(target[:, :, tokens], self._total[:, :, tokens], self._parts[self._turn % PARTS][:, :, :count])
        self._turn += 1

    def _range(self, pair: _Pair) -> tuple[int, int]:
        return (pair.q0, pair.rows) if self.of_queries else (pair.k0, pair.keys)

    def _fold(self, target: HbmView, total: HbmView, part: HbmView) -> None:
        """target = total + part."""
        b, (batches, heads, tokens, depth) = self.b, part.shape
        strip = min(STRIP, tokens)
        with b.scope():
            pools = [token_pool(b, n, strip, depth, float32, 3) for n in ("total", "part")]
            results = token_pool(b, "sum", strip, depth, target.dtype, 2)
            for batch, head, (first, n) in product(range(batches), range(heads), pieces(0, tokens, strip)):
                rows, at = slice(first, first + n), slice(head, head + 1)
                tiles = [pool.next() for pool in pools]
                for tile, view in zip(tiles, (total, part)):
                    load_tokens(b, tile, view[batch, at, rows])
                result = results.next()
                whole, rest = divmod(n, P)
                for height, block, blocks in ((P, 0, whole), (rest, whole, count_blocks(n) - whole)):
                    if height and blocks:
                        place = (slice(0, height), slice(block, block + blocks))
                        b.tensor_tensor(dst=result[place], data1=tiles[0][place], data2=tiles[1][place], op="add")
                store_tokens(b, target[batch, at, rows], result)
