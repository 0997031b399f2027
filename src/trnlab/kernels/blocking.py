# SPDX-License-Identifier: Apache-2.0
"""How a matmul is cut into blocks that fit on chip: choosing what stays in SBUF and what streams past it.

One operand is *resident*: block by block it is brought in, and meets all of the other, *streamed* operand before it leaves.
The contraction is cut into chunks when it is too long for both to be there in full. A block product of several chunks lives
in PSUM until its last chunk, so it must fit there; a resident block keeps all of its chunks unless `keep` is False.

Letters: M stationary free, N moving free, K contraction; R resident, S streamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError
from trnlab.kernels.blocks import BANK, BANKS, P
from trnlab.numerics.dtypes import dtype

TRANSPOSE_BANKS = 2  # PSUM banks set aside when an operand must be transposed
_DEPTHS = (32, 16, 12, 8, 6, 4, 3, 2, 1)
_WIDTHS = (2048, 1024, 512, 256, 128)


@dataclass(frozen=True, slots=True)
class Problem:
    """A product [M, K] x [K, N]. `*_k_rows`: the operand's rows are the contraction, as the PE array wants them."""

    m: int
    n: int
    k: int
    dtype: str
    lhs_k_rows: bool
    rhs_k_rows: bool

    @property
    def itemsize(self) -> int:
        return dtype(self.dtype).itemsize

    @property
    def k_tiles(self) -> int:
        return ceil(self.k / P)

    @property
    def accumulators(self) -> int:
        """PSUM banks for results."""
        return BANKS if self.lhs_k_rows and self.rhs_k_rows else BANKS - TRANSPOSE_BANKS


@dataclass(frozen=True, slots=True)
class Side:
    """One operand in a blocking: free size in all, of a block, of the pieces that blocks are loaded in; SBUF tiles."""

    size: int
    unit: int  # free size of one matmul's operand: 128 stationary, 512 moving
    k_rows: bool
    block: int
    piece: int
    tiles: int
    raw_tiles: int  # tiles for what waits to be transposed

    @property
    def blocks(self) -> int:
        return ceil(self.size / self.block)

    @property
    def pieces(self) -> int:
        """Pieces of a full block."""
        return ceil(self.block / self.piece)

    @property
    def products(self) -> int:
        """Matmul operands, and with it output tiles, in a full block."""
        return ceil(self.block / self.unit)


@dataclass(frozen=True, slots=True)
class Blocking:
    """`lhs_resident` says which of the sides stays; `depth` counts the k tiles of a chunk."""

    lhs: Side
    rhs: Side
    lhs_resident: bool
    depth: int
    chunks: int
    keep: bool

    @property
    def resident(self) -> Side:
        return self.lhs if self.lhs_resident else self.rhs

    @property
    def streamed(self) -> Side:
        return self.rhs if self.lhs_resident else self.lhs

    def sbuf_bytes(self, itemsize: int) -> int:
        """Bytes per partition of all tiles."""
        return sum((s.tiles + s.raw_tiles) * s.piece * self.depth * itemsize for s in (self.lhs, self.rhs))

    @property
    def loads(self) -> tuple[int, int]:
        """How many times all of the resident and all of the streamed operand are loaded."""
        streamed = 1 if self.chunks == 1 and self.streamed.blocks == 1 else self.resident.blocks
        return (1 if self.keep else self.streamed.blocks), streamed


@lru_cache(maxsize=1024)
def choose(problem: Problem, budget: int, chip: Chip) -> Blocking:
    """The blocking with the least estimated time among those that fit in `budget` bytes per partition.

    Raises CapacityError when not even the smallest blocks fit.
    """
    best = min(_candidates(problem, budget), key=lambda blocking: estimate(problem, blocking, chip), default=None)
    if best is None:
        raise CapacityError(
            f"a matmul of {problem.m} x {problem.k} x {problem.n} has no room for its blocks",
            code="TRN501", limit=f"{budget} bytes per partition left", got="at least two tiles of each operand",
            chip=chip.name, remedy="give the routine more SBUF, or release tiles before the call",
        )  # fmt: skip
    return best


def _candidates(problem: Problem, budget: int) -> Iterator[Blocking]:
    k_tiles = problem.k_tiles
    depths = sorted({min(d, k_tiles) for d in _DEPTHS} | ({k_tiles} if k_tiles <= 128 else set()))
    for lhs_resident in (True, False):
        sizes = ((problem.m, P, problem.lhs_k_rows), (problem.n, BANK, problem.rhs_k_rows))
        resident, streamed = sizes if lhs_resident else sizes[::-1]
        for depth in depths:
            column = depth * problem.itemsize  # SBUF bytes of one column of a piece
            for width in _widths(*streamed[:2]):
                for tiles in (4, 3, 2):
                    for raw in (0,) if streamed[2] else (2, 1):
                        side = Side(*streamed, width, width, tiles, raw)
                        left = budget - (tiles + raw) * width * column
                        if left > 0:
                            yield from _residents(problem, side, resident, lhs_resident, depth, left)


def _residents(
    problem: Problem, streamed: Side, size: tuple[int, int, bool], lhs_resident: bool, depth: int, left: int
) -> Iterator[Blocking]:
    """What can be resident in the `left` bytes beside the streamed tiles."""
    chunks = ceil(problem.k_tiles / depth)
    for piece in _widths(*size[:2]):
        raw = 0 if size[2] else 2 if chunks * piece > BANK else 1
        room = left // (piece * depth * problem.itemsize) - raw
        most = ceil(size[0] / piece)  # pieces across the operand
        if chunks > 1:
            most = min(most, problem.accumulators // streamed.products * size[1] // piece)
        for keep in (True,) if chunks == 1 else (True, False):
            per_piece = chunks if keep else 2
            pieces = min(most, room // per_piece)
            if pieces < 1:
                continue
            blocks = ceil(ceil(size[0] / piece) / pieces)
            pieces = ceil(ceil(size[0] / piece) / blocks)  # blocks of about equal size
            tiles = min(room, pieces * (chunks if keep else 3), ceil(size[0] / piece) * chunks)
            if keep and blocks > 1:
                tiles = min(room, 2 * pieces * chunks)
            side = Side(*size, pieces * piece, piece, tiles, raw)
            lhs, rhs = (side, streamed) if lhs_resident else (streamed, side)
            yield Blocking(lhs, rhs, lhs_resident, depth, chunks, keep)


def _widths(size: int, unit: int) -> list[int]:
    """Widths of pieces worth trying: multiples of the unit, or the whole operand if it is smaller."""
    return sorted({min(w, size) for w in _WIDTHS if w % unit == 0 or w >= size} | ({size} if size < unit else set()))


def estimate(problem: Problem, blocking: Blocking, chip: Chip) -> float:
    """Seconds, roughly: the busiest of PE array, DMA and evacuation, plus what cannot overlap. For comparing only."""
    resident_loads, streamed_loads = blocking.loads
    bandwidth = min(chip.dma.engines.value * chip.dma.engine_bandwidth.value, chip.hbm.bandwidth.value)
    transpose = P * chip.tensor.transpose_passes.of(problem.dtype).value / chip.tensor.clock.value
    evacuate = 1.2 / (chip.vector.clock.value + chip.scalar.clock.value)  # a column, by two engines, with their overhead
    columns = ceil(problem.m / P) * problem.n
    multiply = columns * chip.tensor.passes.of(problem.dtype).value / chip.tensor.clock.value
    pe, copies, dma = multiply * problem.k_tiles, columns * evacuate, problem.m * problem.n * problem.itemsize / bandwidth
    exposed = 0.0
    for side, loads in ((blocking.resident, resident_loads), (blocking.streamed, streamed_loads)):
        row = (side.piece if side.k_rows else blocking.depth * P) * problem.itemsize
        slow = 1 + chip.dma.descriptor.value * 1e-9 * chip.dma.engine_bandwidth.value / row
        load = side.size * problem.k * problem.itemsize / bandwidth * slow
        dma += load * loads
        exposed += load * side.piece * blocking.depth / (side.size * problem.k_tiles)
        if not side.k_rows:
            squares = ceil(side.size / P) * problem.k_tiles * loads
            pe += squares * transpose
            copies += squares * P * evacuate
    exposed += _exchange(blocking, dma_of_block=dma * blocking.resident.block / blocking.resident.size, pe=pe)
    return max(pe, dma, copies) + exposed + 0.02 * (pe + dma + copies)


def _exchange(blocking: Blocking, dma_of_block: float, pe: float) -> float:
    """Seconds that the PE array waits while resident blocks change, which fall on one streamed block's work."""
    resident, streamed = blocking.resident, blocking.streamed
    if not blocking.keep or resident.blocks == 1:
        return 0.0
    spare = resident.tiles / (resident.pieces * blocking.chunks) - 1
    work = pe / (resident.blocks * streamed.blocks)
    load = dma_of_block / (streamed.blocks + 1)
    return (resident.blocks - 1) * max(0.0, load * (1 - spare) - work)
