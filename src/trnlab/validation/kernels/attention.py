# SPDX-License-Identifier: Apache-2.0
"""The two attention kernels of trainium-kernel-fusion: q, k, v of [128, seq], out [seq, 128], no scaling, no mask.

unfused: scores go through HBM before and after the softmax. fused: everything stays on chip. What the hardware's
compiler made of them is read off the profiles: reductions and reciprocals of several query tiles in one instruction,
four transposes into one bank of PSUM and out of it in one copy, one DMA for several tiles, exp's table loaded while
the inputs arrive. Sequences of 2048 and more have no profile; the same choices are made for them.

Shape letters: T query tiles of 128 rows, C chunks of 512 keys.
"""

from __future__ import annotations

from collections import deque

from trnlab.chips import Chip
from trnlab.isa.base import Engine
from trnlab.program import AP, Builder, Routine, hbm_view

P, CHUNK, PIECES = 128, 512, 4  # a chunk is transposed in four pieces
FLOAT = "float32"
VECTOR, SCALAR, GPSIMD, SYNC = Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD, Engine.SYNC
STORE_BYTES = 4096  # per partition, of one DMA of scores
SCORES_BYTES = 64 * 1024  # per partition, of the scores on their way to HBM
LOADED_BYTES = 32 * 1024  # per partition, of the rows of softmax on their way back
SOFTMAX_BYTES = 32 * 1024  # per partition, of the scores that are normalised together
COPIERS = (VECTOR, SCALAR, SCALAR, SCALAR)  # who empties PSUM, in turn
MOST_WAITING = 3  # banks of PSUM with results that ScalarE has yet to copy


class _Attention:
    """What both kernels start with: inputs in SBUF, the identity, V transposed."""

    def __init__(self, name: str, chip: Chip, seq: int, dtype: str, result: str) -> None:
        b = self.b = Builder(name, chip)
        self.seq, self.dtype = seq, dtype
        self.tiles, self.chunks = seq // P, seq // CHUNK
        self.q, self.k, self.v = (b.tile((P, seq), dtype, name=n) for n in "qkv")
        self.identity = b.tile((P, P), FLOAT, name="identity")
        self.v_t = b.tile((P, seq), FLOAT, name="v_t", slots=self.chunks)
        self.result = b.tile((P, self.tiles, P), result, name="result", slots=self.tiles)
        self.out = b.param("out", (seq, P), dtype)
        self._load_inputs()
        self._waiting: deque[tuple[AP, AP]] = deque()
        self._turn = 0

    def _load_inputs(self) -> None:
        b = self.b
        warm = b.tile((P, 1), FLOAT, name="warm")
        b.activation(dst=warm, data=warm, op="exp")  # loads the table
        for dtype in dict.fromkeys((self.dtype, FLOAT)):
            tile = self.identity if dtype == FLOAT else b.tile((P, P), dtype)
            b.dma_copy(dst=tile, src=b.param(f"identity_{dtype}", (P, P), dtype), engine=SYNC, queue=0)
        for name in ("v", "q", "k"):
            source = b.param(name, (P, self.seq), self.dtype)
            b.dma_copy(dst=getattr(self, name), src=source, engine=GPSIMD, queue=0)

    def transpose_v(self) -> None:
        """V with keys on the partitions, in fp32."""
        for c in range(self.chunks):
            self.copy(self.v_t[:, _chunk(c)], self.transposed(self.v[:, _chunk(c)]), SCALAR)

    def scores(self, tile: int, chunk: int) -> AP:
        """q.T @ k of one query tile and chunk, in PSUM."""
        acc = self.b.psum((P, CHUNK))
        self.b.nc_matmul(dst=acc, stationary=self.q[:, _tile(tile)], moving=self.k[:, _chunk(chunk)])
        return acc

    def transposed(self, data: AP) -> AP:
        """A chunk, transposed piece by piece into one bank."""
        acc = self.b.psum((P, CHUNK), data.dtype)
        for piece in range(PIECES):
            self.b.nc_transpose(dst=acc[:, _tile(piece)], data=data[:, _tile(piece)])
        return acc

    def copy(self, dst: AP, src: AP, engine: Engine) -> None:
        """PSUM to SBUF."""
        self.b.tensor_copy(dst=dst, src=src, engine=engine)

    def copy_when_free(self, dst: AP, src: AP) -> None:
        """PSUM to SBUF by the engine whose turn it is; ScalarE's copies wait until `flush`, or for want of banks."""
        engine = COPIERS[self._turn % len(COPIERS)]
        self._turn += 1
        if engine is VECTOR:
            self.copy(dst, src, VECTOR)
            return
        self._waiting.append((dst, src))
        if len(self._waiting) > MOST_WAITING:
            self.copy(*self._waiting.popleft(), SCALAR)

    def flush(self) -> None:
        """The copies that wait."""
        while self._waiting:
            self.copy(*self._waiting.popleft(), SCALAR)

    def weighted(self, p_t: AP, tile: int) -> AP:
        """Rows of softmax, transposed, times V: one output tile in PSUM."""
        acc = self.b.psum((P, P))
        pieces = self.seq // P
        for i in range(pieces):
            stationary, moving = p_t[:, tile, _tile(i)], self.v_t[:, _tile(i)]
            self.b.nc_matmul(dst=acc, stationary=stationary, moving=moving, accumulate=i > 0, stop=i == pieces - 1)
        return acc

    def store(self, first: int, count: int) -> None:
        """Output tiles first .. first + count, in one DMA."""
        target = hbm_view(self.out.buffer, first * P * P, ((P, P), (P * P, count), (1, P)))
        self.b.dma_copy(dst=target, src=self.result[:, first : first + count], engine=GPSIMD, queue=0)


def fused(chip: Chip, *, seq: int, dtype: str) -> Routine:
    """Scores, softmax and the second product in turn for groups of four query tiles, or fewer where SBUF is short."""
    a = _Attention("attention_fused", chip, seq, dtype, FLOAT)
    group = min(4, SOFTMAX_BYTES // (4 * seq))
    a.transpose_v()
    for first in range(0, a.tiles, group):
        with a.b.scope():
            _fused_group(a, first, group)
    a.store(0, a.tiles)
    return a.b.build()


def _fused_group(a: _Attention, first: int, group: int) -> None:
    b = a.b
    maxima = b.tile((P, group, a.chunks), FLOAT)
    sums = b.tile((P, group, a.chunks), FLOAT, slots=group)
    negated, total, inverse = (b.tile((P, group), FLOAT) for _ in range(3))
    kept = b.tile((P, group, (a.chunks - 1) * CHUNK or 1), FLOAT, name="scores", slots=group)
    exps = b.pool((P, CHUNK), FLOAT, bufs=min(4, a.chunks * group), name="exp")
    p_t = b.tile((P, group, a.seq), FLOAT, name="p_t", slots=group * a.chunks)
    scores = _fused_scores(a, first, group, kept, maxima)
    b.tensor_reduce(dst=negated, data=maxima, op="max", negate=True)
    for t in range(group):
        for c in range(a.chunks):
            exp = exps.next()
            b.activation(dst=exp, data=scores[t, c], bias=negated[:, t : t + 1], op="exp")
            b.tensor_reduce(dst=sums[:, t, c : c + 1], data=exp, op="add")
            a.copy_when_free(p_t[:, t, _chunk(c)], a.transposed(exp))
    a.flush()
    b.tensor_reduce(dst=total, data=sums, op="add")
    b.reciprocal(dst=inverse, data=total)
    for t in range(group):
        acc = a.weighted(p_t, t)
        b.tensor_scalar(dst=a.result[:, first + t], data=acc, operand0=inverse[:, t : t + 1], op0="multiply")


def _fused_scores(a: _Attention, first: int, group: int, kept: AP, maxima: AP) -> dict[tuple[int, int], AP]:
    """Scores of a group and the maxima of their rows. The last chunk stays in PSUM, the others are copied to SBUF."""
    scores = {}
    for c in range(a.chunks):
        for t in range(group):
            place = a.scores(first + t, c)
            if c < a.chunks - 1:
                acc, place = place, kept[:, t, _chunk(c)]
                a.copy(place, acc, VECTOR if t % 2 else SCALAR)
            a.b.tensor_reduce(dst=maxima[:, t, c : c + 1], data=place, op="max")
            scores[t, c] = place
    return scores


def unfused(chip: Chip, *, seq: int, dtype: str) -> Routine:
    """All scores to HBM, softmax from HBM to HBM, the second product from HBM."""
    a = _Attention("attention_unfused", chip, seq, dtype, dtype)
    hbm = a.b.scratch("scores", (seq, seq), FLOAT)
    per_dma = max(STORE_BYTES // (4 * seq), 1)
    weights = a.b.scratch("weights", (seq, seq), FLOAT)
    with a.b.scope():
        _write_scores(a, hbm, per_dma)
    a.transpose_v()
    group = max(min(SOFTMAX_BYTES // (4 * seq), a.tiles), per_dma)
    for first in range(0, a.tiles, group):
        with a.b.scope():
            _softmax(a, hbm, weights, per_dma, first, group)
    with a.b.scope():
        _second_product(a, weights, per_dma)
    return a.b.build()


def _write_scores(a: _Attention, hbm: AP, per_dma: int) -> None:
    """Each store is triggered behind the copies of the next tile, so ScalarE need not wait for VectorE."""
    bufs = min(a.tiles // per_dma, SCORES_BYTES // (4 * a.seq * per_dma))
    tiles = a.b.pool((P, per_dma, a.seq), FLOAT, bufs=bufs, name="scores")
    stores: deque[tuple[AP, AP]] = deque()
    for first in range(0, a.tiles, per_dma):
        tile = tiles.next()
        for t in range(per_dma):
            for c in range(a.chunks):
                turn = t * a.chunks + c
                a.copy(tile[:, t, _chunk(c)], a.scores(first + t, c), VECTOR if turn % 2 else SCALAR)
        if stores:
            _store_scores(a, *stores.popleft())
        stores.append((_rows(hbm, a.seq, first, per_dma), tile))
    _store_scores(a, *stores.popleft())


def _store_scores(a: _Attention, dst: AP, src: AP) -> None:
    a.b.dma_copy(dst=dst, src=src, engine=SCALAR, queue=1)


def _softmax(a: _Attention, hbm: AP, weights: AP, per_dma: int, first: int, group: int) -> None:
    """Rows of softmax of query tiles first .. first + group."""
    b = a.b
    maxima, sums = b.tile((P, group, a.chunks), FLOAT), b.tile((P, group, a.chunks), FLOAT)
    negated, total, inverse = (b.tile((P, group), FLOAT) for _ in range(3))
    scores = b.tile((P, group, a.seq), FLOAT, name="scores", slots=group * a.chunks)
    exps = b.tile((P, group, a.seq), FLOAT, name="exps", slots=group * a.chunks)
    items = [(t, c) for t in range(group) for c in range(a.chunks)]
    for t in range(0, group, per_dma):
        source = _rows(hbm, a.seq, first + t, per_dma)
        b.dma_copy(dst=scores[:, t : t + per_dma], src=source, engine=SYNC, queue=0)
    for t, c in items:
        b.tensor_reduce(dst=maxima[:, t, c : c + 1], data=scores[:, t, _chunk(c)], op="max")
    b.tensor_reduce(dst=negated, data=maxima, op="max", negate=True)
    for t, c in items:
        exp = exps[:, t, _chunk(c)]
        b.activation(dst=exp, data=scores[:, t, _chunk(c)], bias=negated[:, t : t + 1], op="exp")
        b.tensor_reduce(dst=sums[:, t, c : c + 1], data=exp, op="add")
    b.tensor_reduce(dst=total, data=sums, op="add")
    b.reciprocal(dst=inverse, data=total)
    for t, c in items:
        weight, exp = scores[:, t, _chunk(c)], exps[:, t, _chunk(c)]
        b.tensor_scalar(dst=weight, data=exp, operand0=inverse[:, t : t + 1], op0="multiply")
        if c == a.chunks - 1 and (t + 1) % per_dma == 0:
            done = slice(t + 1 - per_dma, t + 1)
            _store_scores(a, _rows(weights, a.seq, first + t + 1 - per_dma, per_dma), scores[:, done])


def _second_product(a: _Attention, weights: AP, per_dma: int) -> None:
    """The PE array transposes the rows of a tile before it multiplies those of the tile before."""
    b = a.b
    loaded = b.pool((P, per_dma, a.seq), FLOAT, bufs=LOADED_BYTES // (4 * a.seq * per_dma), name="weights")
    turned = b.pool((P, 1, a.seq), FLOAT, bufs=2, name="p_t")
    ready: deque[tuple[int, AP]] = deque()
    for first in range(0, a.tiles, per_dma):
        rows = loaded.next()
        b.dma_copy(dst=rows, src=_rows(weights, a.seq, first, per_dma), engine=SYNC, queue=0)
        for t in range(per_dma):
            p_t = turned.next()
            for c in range(a.chunks):
                a.copy(p_t[:, 0, _chunk(c)], a.transposed(rows[:, t, _chunk(c)]), SCALAR)
            if ready:
                _output_tile(a, *ready.popleft())
            ready.append((first + t, p_t))
    _output_tile(a, *ready.popleft())


def _output_tile(a: _Attention, tile: int, p_t: AP) -> None:
    a.copy(a.result[:, tile], a.weighted(p_t, 0), VECTOR if tile % 4 == 1 else SCALAR)
    if tile % 4 == 3:
        a.store(tile - 3, 4)


def _rows(hbm: AP, seq: int, first: int, count: int) -> AP:
    """Query tiles first .. first + count of a [seq, seq] matrix, as [128, count, seq]."""
    return hbm_view(hbm.buffer, first * P * seq, ((seq, P), (P * seq, count), (1, seq)))


def _tile(i: int) -> slice:
    return slice(i * P, (i + 1) * P)


def _chunk(i: int) -> slice:
    return slice(i * CHUNK, (i + 1) * CHUNK)
