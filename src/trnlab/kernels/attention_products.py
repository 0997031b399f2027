# SPDX-License-Identifier: Apache-2.0
"""The second stage of attention forward: exponentials, their products with V, and the division by their sums.

S^T - m             [128 keys, queries] in PSUM: -m is one more row of the contraction
P^T = exp(...)      ScalarE, from PSUM to SBUF
O += P^T.T [V 1]    [128 queries, E + 1] in PSUM: the column of ones gives the row sums
out = O / l
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from trnlab.isa.base import Engine
from trnlab.kernels.attention_bias import HidingBias, ShiftedBias
from trnlab.kernels.attention_memory import AttentionMemory, Superblock
from trnlab.kernels.attention_tiles import (
    DeferredInstructions,
    Task,
    Term,
    accumulate,
    block_runs,
    count_blocks,
    pieces,
    store_statistics,
    store_tokens,
    tokens_on_chip,
)
from trnlab.kernels.blocks import BANK, P
from trnlab.kernels.view import HbmView
from trnlab.program.access import AP

LEAST_SUM = 1e-37  # of exponentials: their inverse is finite


class _Part(NamedTuple):
    """A part of a tile of scores, from column `at` on: keys [k0, +n) and queries [q0, q1) of a head of the pack."""

    head: int
    k0: int
    n: int
    q0: int
    q1: int
    at: int

    @property
    def end(self) -> int:
        """The column behind it."""
        return self.at + self.q1 - self.q0


def _tiles(task: Task, job: Superblock, banks: int) -> list[list[_Part]]:
    """The scores of a superblock as tiles of so many banks of PSUM, with equally many keys in all columns.

    Query blocks stay whole and in one bank. Queries before a block of keys see none of it.
    """
    tiles: list[list[_Part]] = []
    tile: list[_Part] = []
    for k0, n, head, q0, q1 in _units(task, job):
        last = tile[-1] if tile else None
        at = last.end if last else 0
        if at % BANK + q1 - q0 > BANK:
            at += BANK - at % BANK
        if last is None or last.n != n or at + q1 - q0 > banks * BANK:
            tile = [_Part(head, k0, n, q0, q1, 0)]
            tiles.append(tile)
        elif (last.head, last.k0, last.end) == (head, k0, at) and at % BANK:
            tile[-1] = last._replace(q1=q1)
        else:
            tile.append(_Part(head, k0, n, q0, q1, at))
    return tiles


def _units(task: Task, job: Superblock) -> Iterator[tuple[int, int, int, int, int]]:
    """Blocks of keys and of queries that see them: first key, keys, head, queries from, to."""
    for k0, n in pieces(0, task.span(job.q1), P):
        for head in range(job.pack.heads):
            for q0, count in pieces(max(job.q0, k0) if task.causal else job.q0, job.q1, P):
                yield k0, n, head, q0, q0 + count


def _columns(tile: list[_Part]) -> Iterator[tuple[int, int]]:
    """The columns of a tile that hold scores, as (first, end)."""
    first = end = 0
    for part in tile:
        if part.at != end:
            yield first, end
            first = part.at
        end = part.end
    yield first, end


class Products:
    """Records exponentials and what follows them. Products run a few tiles behind their exponentials."""

    def __init__(self, memory: AttentionMemory, out: HbmView) -> None:
        self.b, self.task, self.memory, self.out = memory.b, memory.task, memory, out
        self.turn = 0  # tiles of scores so far
        self.biased: deque[Callable[[], None]] = deque()  # exponentials of tiles that a bias was added to
        self.pending: deque[Callable[[], None]] = deque()  # products with V of the last tiles
        self.later: deque[tuple[int, Callable[[], None]]] = deque()  # divisions, with the turn that they wait for

    def steps(self, job: Superblock) -> list[DeferredInstructions]:
        """The superblock's tiles of exponentials."""
        return [
            DeferredInstructions(sum(part.q1 - part.q0 for part in tile), partial(self._exponentials, job, tile))
            for tile in _tiles(self.task, job, self.memory.banks)
        ]

    def flush(self) -> None:
        """What waits for its turn."""
        while self.biased:
            self.biased.popleft()()
        while self.pending:
            self.pending.popleft()()
        for _, step in self.later:
            step()

    def store_lse(self, lse: HbmView) -> None:
        """lse = scale * m + log(l), for all queries at once: changing ScalarE's table of functions takes long."""
        b, t, m = self.b, self.task, self.memory
        for block, n, count in block_runs(0, t.queries):
            inverse = m.inverse_all[:n, :, block : block + count]
            b.activation(dst=inverse, data=inverse, op="log")
            b.scalar_tensor_tensor(
                dst=inverse,
                data=m.shift_all[:n, :, block : block + count],
                operand0=-t.scale,
                operand1=inverse,
                op0="multiply",
                op1="subtract",
            )
        store_statistics(b, m.maxima, lse, m.inverse_all)

    def _exponentials(self, job: Superblock, tile: list[_Part]) -> None:
        """P^T of a tile of scores; its products with V come some tiles later."""
        m, pack, n = self.memory, job.pack, tile[0].n
        scores = m.scores.next()[:n]
        firsts: list[Term] = []
        more: list[Term] = []
        for part in tile:
            dst = scores[:, part.at : part.end]
            operands = zip(
                m.of_head(pack.kt, pack.key(part.head), shift=True), m.of_head(pack.shifted, part.head, shift=True)
            )
            keys, queries = slice(part.k0, part.k0 + n), slice(part.q0, part.q1)
            one, *others = ((dst, kt[:, keys], qt[:, queries]) for kt, qt in operands)
            firsts.append(one)
            more += [*others, *self._added(job, part, dst)]
        accumulate(self.b, firsts, more, in_lanes=m.lanes is not None)
        if m.added is None:
            self._take(job, tile, scores)
            return
        # ScalarE would wait for VectorE here, and VectorE for the next scores that ScalarE copies.
        self.biased.append(partial(self._take, job, tile, self._with_bias(job, tile, scores, m.added.next()[:n])))
        if len(self.biased) > 1:
            self.biased.popleft()()

    def _take(self, job: Superblock, tile: list[_Part], scores: AP) -> None:
        """The exponentials, and products of a few tiles before."""
        p = self.memory.p_pool.next()[: tile[0].n]
        self._exponentiate(job, tile, p, scores)
        self.pending.append(partial(self._products, job, tile, p))
        if len(self.pending) > self.memory.lookahead:
            self.pending.popleft()()
        self.turn += 1
        while self.later and self.later[0][0] <= self.turn:
            self.later.popleft()[1]()

    def _exponentiate(self, job: Superblock, tile: list[_Part], p: AP, scores: AP) -> None:
        """p = exp(scale * scores), with a bias of keys in the exponent; of scores that have theirs already,
        exp(scores)."""
        b, bias, scale = self.b, self.memory.bias, self.task.scale if self.memory.added is None else 1.0
        if not isinstance(bias, ShiftedBias) or bias.per_query:
            for first, end in _columns(tile):
                b.activation(dst=p[:, first:end], data=scores[:, first:end], op="exp", scale=scale)
            return
        for part in tile:
            at, one = slice(part.at, part.end), bias.exact(job.bias[part.head], part.n, part.k0, 0, 1)
            b.activation(dst=p[:, at], data=scores[:, at], op="exp", scale=scale, bias=one)

    def _with_bias(self, job: Superblock, tile: list[_Part], scores: AP, added: AP) -> AP:
        """added = scale * scores + bias."""
        bias = self.memory.bias
        assert isinstance(bias, ShiftedBias)
        for part in tile:
            one = bias.exact(job.bias[part.head], part.n, part.k0, part.q0 - job.q0, part.q1 - part.q0)
            dst, data = (x[:, part.at : part.end] for x in (added, scores))
            self.b.scalar_tensor_tensor(
                dst=dst, data=data, operand0=self.task.scale, operand1=one, op0="multiply", op1="add"
            )
        return added

    def _added(self, job: Superblock, part: _Part, scores: AP) -> Iterator[Term]:
        """What is added to a part of a tile of scores."""
        m, n = self.memory, part.n
        if not m.fused:
            yield scores, m.constants.ones()[:, :n], job.shift[:, part.head, part.q0 - job.q0 : part.q1 - job.q0]
        if self.task.causal and part.q0 <= part.k0 < part.q1:
            first = part.k0 - part.q0
            seen = min(n, part.q1 - part.k0)  # queries from the block's end on see all of it
            mask = m.constants.mask_queries_before()[:n, :seen]
            yield scores[:, first : first + seen], m.constants.identity()[:n, :n], mask
        if isinstance(m.bias, HidingBias):
            for q0, count in pieces(part.q0, part.q1, P):
                at = q0 - part.q0
                yield m.bias.to_keys(scores[:, at : at + count], job.bias[part.head], (q0 - job.q0) // P, part.k0)

    def _products(self, job: Superblock, tile: list[_Part], p: AP) -> None:
        """Add P V of a tile to the accumulators [queries, E + 1] of the superblock's query blocks."""
        task, pack, n = self.task, job.pack, tile[0].n
        if tile[0].k0 == 0 and tile[0].head == 0 and tile[0].q0 == job.q0:
            job.sums = self._accumulators(job)
        for part in tile:
            values = pack.values[:n, pack.key(part.head), part.k0 // P]
            for q0, count in pieces(part.q0, part.q1, P):
                at = part.at + q0 - part.q0
                self.b.nc_matmul(
                    dst=job.sums[:count, part.head, (q0 - job.q0) // P],
                    stationary=p[:, at : at + count],
                    moving=values,
                    accumulate=part.k0 > 0,
                    stop=part.k0 + n >= task.span(q0 + count),
                )
        last = tile[-1]
        if (last.k0 + n, last.head + 1, last.q1) == (task.span(job.q1), pack.heads, job.q1):
            self._finish(job)

    def _accumulators(self, job: Superblock) -> AP:
        """[128, heads, blocks, E + 1] of a bank."""
        width, blocks = self.task.value_depth + 1, count_blocks(job.q1 - job.q0)
        return self.memory.sums.next().with_dims((blocks * width, job.pack.heads), (width, blocks), (1, width))

    def _finish(self, job: Superblock) -> None:
        """out = O / l. ScalarE frees the accumulator's bank at once; VectorE and GpSimd divide when it has."""
        m = self.memory
        sums = m.o_pool.next().with_dims(*job.sums.dims)
        for block, n, count in block_runs(job.q0, job.q1):
            at = block - job.q0 // P
            self.b.activation(dst=sums[:n, :, at : at + count], data=job.sums[:n, :, at : at + count], op="copy")
        self.later.append((self.turn + m.lookahead, partial(self._divide, job, sums)))

    def _divide(self, job: Superblock, sums: AP) -> None:
        b, m, pack, depth = self.b, self.memory, job.pack, self.task.value_depth
        g = pack.group
        view = self.out[g.batch, g.head : g.head + g.heads]
        at_home = tokens_on_chip(b, view)
        if job.q0 == 0 and pack.head == g.head:
            self.out_tile = m.out_pool.next() if at_home is None else at_home
        column, first = m.column(pack), (pack.head - pack.group.head) * depth
        for block, n, count in block_runs(job.q0, job.q1):
            part = sums[:n, :, block - job.q0 // P : block - job.q0 // P + count]
            inverse = m.inverse_all[:n, column : column + pack.heads, block : block + count]
            total = part[:, :, :, depth]
            if m.bias is not None:  # queries that see no key have sums of zero
                b.tensor_scalar(dst=total, data=total, operand0=LEAST_SUM, op0="max")
            b.reciprocal(dst=inverse, data=total)
            out = self.out_tile[:n, block : block + count, first : first + pack.heads * depth]
            b.tensor_tensor(
                dst=out.split(1, pack.heads, depth).permute(1, 0, 2),
                data1=part[:, :, :, :depth],
                data2=inverse.repeat(2, depth),
                op="multiply",
                engine=Engine.GPSIMD,
            )
        if job.ends and at_home is None:
            store_tokens(b, view, self.out_tile)
