# SPDX-License-Identifier: Apache-2.0
"""The fp32 matrix product of the vendor's kernel-optimization tutorial: out[M, N] = lhsT[K, M].T @ rhs[K, N].

Versions two to five of the tutorial, which differ in what is loaded when. SyncE triggers the loads, ScalarE the
stores, as in the profiles of other kernels.
"""

from __future__ import annotations

from collections.abc import Iterable

from trnlab.chips import Chip
from trnlab.isa.base import Engine
from trnlab.program import AP, Builder, Pool, Routine

P, M_TILE, N_TILE = 128, 128, 512
DTYPE = "float32"
TILE_BYTES = N_TILE * 4  # of a tile of rhs, per partition
PASSING = 16  # tiles of rhs that are loaded for one use
QUARTERS = 4


class _Product:
    """The parameters of a product, and the steps that all versions share."""

    def __init__(self, name: str, chip: Chip, m: int, k: int, n: int, *, results: int = 4) -> None:
        self.b = Builder(name, chip)
        self.m, self.k, self.n = m // M_TILE, k // P, n // N_TILE  # in tiles
        self.lhs_t = self.b.param("lhsT", (k, m), DTYPE)
        self.rhs = self.b.param("rhs", (k, n), DTYPE)
        self.out = self.b.param("out", (m, n), DTYPE)
        self.results = self.b.pool((M_TILE, N_TILE), DTYPE, bufs=results, name="result")

    def load(self, tile: AP, source: AP, k: int, column: int) -> AP:
        """Rows k of `source`, `tile`'s width of columns from the column-th such piece on."""
        width = tile.free
        piece = source[k * P : (k + 1) * P, column * width : (column + 1) * width]
        self.b.dma_copy(dst=tile, src=piece, engine=Engine.SYNC, queue=0)
        return tile

    def store(self, result: AP, m: int, n: int) -> None:
        """Tile (m, n) of out; n counts tiles of the width of `result`."""
        width = result.free
        piece = self.out[m * M_TILE : (m + 1) * M_TILE, n * width : (n + 1) * width]
        self.b.dma_copy(dst=piece, src=result, engine=Engine.SCALAR, queue=0)

    def accumulate(self, depth: int, operands: Iterable[tuple[AP, AP]]) -> AP:
        """The sum over `depth` tiles of K; `operands` are stationary and moving, made as they are needed."""
        acc = self.b.psum((M_TILE, N_TILE))
        for k, (stationary, moving) in enumerate(operands):
            self.b.nc_matmul(dst=acc, stationary=stationary, moving=moving, accumulate=k > 0, stop=k == depth - 1)
        return acc

    def finish(self, acc: AP, m: int, n: int) -> None:
        """PSUM to SBUF to HBM."""
        result = self.results.next()
        self.b.tensor_copy(dst=result, src=acc, engine=Engine.VECTOR)
        self.store(result, m, n)


def load_per_tile(chip: Chip, *, m: int, k: int, n: int) -> Routine:
    """Second version: both tiles are loaded before each matmul."""
    p = _Product("matmul_load_per_tile", chip, m, k, n)
    lhs, rhs = p.b.pool((P, M_TILE), DTYPE, bufs=16), p.b.pool((P, N_TILE), DTYPE, bufs=16)
    for i in range(p.m):
        for j in range(p.n):
            tiles = ((p.load(lhs.next(), p.lhs_t, k, i), p.load(rhs.next(), p.rhs, k, j)) for k in range(p.k))
            p.finish(p.accumulate(p.k, tiles), i, j)
    return p.b.build()


def hoisted(chip: Chip, *, m: int, k: int, n: int) -> Routine:
    """Third version: a column of lhsT tiles is loaded once, a column of rhs tiles once per output tile.

    The next column of lhsT is loaded while this one is at work.
    """
    p = _Product("matmul_hoisted", chip, m, k, n)
    lhs = p.b.pool((P, M_TILE), DTYPE, bufs=2 * p.k, name="lhs")
    rhs = p.b.pool((P, N_TILE), DTYPE, bufs=p.b.sbuf_free // TILE_BYTES, name="rhs")
    stationary = [p.load(lhs.next(), p.lhs_t, k, 0) for k in range(p.k)]
    for i in range(p.m):
        following: list[AP] = []
        for j in range(p.n):
            moving = [p.load(rhs.next(), p.rhs, k, j) for k in range(p.k)]
            p.finish(p.accumulate(p.k, zip(stationary, moving)), i, j)
            share = range(p.k * j // p.n, p.k * (j + 1) // p.n) if i + 1 < p.m else ()
            following += [p.load(lhs.next(), p.lhs_t, k, i + 1) for k in share]
        stationary = following
    return p.b.build()


def blocked_free(chip: Chip, *, m: int, k: int, n: int, block_m: int = 2, block_n: int = 2) -> Routine:
    """Fourth version: blocks of 2 x 2 output tiles share their loads.

    The rhs tiles of a block are more than SBUF holds; what does not fit is loaded again for each row of the block.
    """
    p = _Product("matmul_blocked_free", chip, m, k, n)
    lhs = p.b.pool((P, M_TILE), DTYPE, bufs=block_m * p.k, name="lhs")
    passing = p.b.pool((P, N_TILE), DTYPE, bufs=PASSING, name="passing")
    room = min(p.b.sbuf_free // TILE_BYTES, block_n * p.k)
    resident = p.b.pool((P, N_TILE), DTYPE, bufs=room, name="resident")
    for i in range(0, p.m, block_m):
        rows = [[p.load(lhs.next(), p.lhs_t, k, i + bm) for k in range(p.k)] for bm in range(block_m)]
        for j in range(0, p.n, block_n):
            kept: dict[tuple[int, int], AP] = {}
            for bm in range(block_m):
                for bn in range(block_n):
                    tiles = ((rows[bm][k], _moving(p, kept, room, resident, passing, k, j + bn)) for k in range(p.k))
                    p.finish(p.accumulate(p.k, tiles), i + bm, j + bn)
    return p.b.build()


def _moving(
    p: _Product, kept: dict[tuple[int, int], AP], room: int, resident: Pool, passing: Pool, k: int, column: int
) -> AP:
    """Tile (k, column) of rhs: kept from before, or loaded, to be kept while there is room."""
    if (k, column) not in kept:
        pool = resident if len(kept) < room else passing
        tile = p.load(pool.next(), p.rhs, k, column)
        if pool is passing:
            return tile
        kept[k, column] = tile
    return kept[k, column]


def blocked(chip: Chip, *, m: int, k: int, n: int, block_m: int = 16, block_n: int = 2, block_k: int = 8) -> Routine:
    """Fifth version: blocked over K as well; partial sums are added up in SBUF.

    Its tiles are as large as all of SBUF, a part of which the compiler keeps. The sums that do not fit are spilled:
    they pass through SBUF once per block of K, which explains the 0.34 GB that the chip moved beyond what the source
    asks for. lhsT is loaded by quarters, each as soon as the one before is used.
    """
    p = _Product("matmul_blocked", chip, m, k, n, results=0)
    b = p.b
    rhs = b.pool((P, block_n * N_TILE), DTYPE, bufs=block_k, name="rhs")
    lhs = [b.tile((P, block_m * M_TILE), DTYPE, name="lhs", slots=QUARTERS) for _ in range(block_k)]
    sums = _Sums(p, block_n)
    for j in range(p.n // block_n):
        sums.clear()
        for kk in range(0, p.k, block_k):
            moving = [p.load(rhs.next(), p.rhs, k, j) for k in range(kk, kk + block_k)]
            for i in range(p.m // block_m):
                _load_quarters(p, lhs, kk, i)
                _block(p, lhs, moving, sums, range(i * block_m, (i + 1) * block_m), first=kk == 0)
        for i in range(p.m):
            _store_row(p, rhs.next(), sums, i, j)
    return b.build()


class _Sums:
    """The output tiles of a column of blocks: in SBUF as far as there is room, else in HBM."""

    PASSING = 2  # tiles through which the spilled ones pass

    def __init__(self, p: _Product, block_n: int) -> None:
        self.p, b = p, p.b
        places = [(m, n) for m in range(p.m) for n in range(block_n)]
        room = b.sbuf_free // TILE_BYTES
        room = room if room >= len(places) else room - self.PASSING
        self.resident = {place: b.tile((M_TILE, N_TILE), DTYPE) for place in places[:room]}
        self.spilled = {
            place: b.scratch(f"sum{place[0]}_{place[1]}", (M_TILE, N_TILE), DTYPE) for place in places[room:]
        }
        self.passing = b.pool((M_TILE, N_TILE), DTYPE, bufs=self.PASSING, name="sum") if self.spilled else None

    def clear(self) -> None:
        """Zeros, for the tiles that stay."""
        for tile in self.resident.values():
            self.p.b.memset(dst=tile, value=0.0, engine=Engine.VECTOR)

    def fetch(self, m: int, n: int, *, first: bool = False) -> AP:
        """The sum in SBUF; a spilled one is loaded, or zeroed the first time."""
        if (m, n) in self.resident:
            return self.resident[m, n]
        assert self.passing is not None
        tile = self.passing.next()
        if first:
            self.p.b.memset(dst=tile, value=0.0, engine=Engine.VECTOR)
        else:
            self.p.b.dma_copy(dst=tile, src=self.spilled[m, n], engine=Engine.SYNC, queue=1)
        return tile

    def put_back(self, tile: AP, m: int, n: int) -> None:
        """Store a spilled sum."""
        if (m, n) in self.spilled:
            self.p.b.dma_copy(dst=self.spilled[m, n], src=tile, engine=Engine.SCALAR, queue=1)


def _load_quarters(p: _Product, lhs: list[AP], first: int, column: int) -> None:
    width = lhs[0].free // QUARTERS
    for quarter in range(QUARTERS):
        for k, tile in enumerate(lhs, start=first):
            p.load(tile[:, quarter * width : (quarter + 1) * width], p.lhs_t, k, column * QUARTERS + quarter)


def _block(p: _Product, stationary: list[AP], moving: list[AP], sums: _Sums, rows: range, *, first: bool) -> None:
    """All output tiles of a block, added to their sums."""
    for bn in range(moving[0].free // N_TILE):
        columns = slice(bn * N_TILE, (bn + 1) * N_TILE)
        for bm, m in enumerate(rows):
            total = sums.fetch(m, bn, first=first)
            part = slice(bm * M_TILE, (bm + 1) * M_TILE)
            tiles = ((s[:, part], v[:, columns]) for s, v in zip(stationary, moving))
            p.b.tensor_tensor(dst=total, data1=total, data2=p.accumulate(len(moving), tiles), op="add")
            sums.put_back(total, m, bn)


def _store_row(p: _Product, packed: AP, sums: _Sums, m: int, n: int) -> None:
    """The tiles of one row of a block, side by side, in one store."""
    for bn in range(packed.free // N_TILE):
        tile = sums.fetch(m, bn)
        p.b.tensor_copy(dst=packed[:, bn * N_TILE : (bn + 1) * N_TILE], src=tile, engine=Engine.VECTOR)
    p.store(packed, m, n)
