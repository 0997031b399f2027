# SPDX-License-Identifier: Apache-2.0
"""How a matmul is cut into blocks that fit on chip: choosing what stays in SBUF and what streams past it.

One operand is *resident*: block by block it is brought in, and meets all of the other, *streamed* operand before
it leaves. The contraction is cut into chunks when it is too long for both to be there in full. A block product of
several chunks waits for its next one in PSUM, so it must fit there; unless it is spilled to SBUF, which takes VectorE
an addition per chunk. A resident block keeps all of its chunks while it can.

Letters: M stationary free, N moving free, K contraction; R resident, S streamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil
from typing import NamedTuple

from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError
from trnlab.isa.products.nc_matmul import FP8
from trnlab.kernels.blocks import BANK, BANKS, P
from trnlab.numerics.dtypes import dtype

TILE_ALIGN = 64  # bytes; SBUF tiles start on multiples
TRANSPOSE_BANKS = 2  # PSUM banks set aside when an operand must be transposed
MOST_TRANSPOSE_BANKS = 6  # where results are few
_DEPTHS = (32, 16, 12, 8, 6, 4, 3, 2, 1)
_WIDTHS = (2048, 1024, 512, 256, 128)


@dataclass(frozen=True, slots=True)
class MatmulProblem:
    """A product [M, K] x [K, N]. `*_k_rows`: the operand's rows are the contraction, as the PE array wants them."""

    m: int
    n: int
    k: int
    dtype: str
    lhs_k_rows: bool
    rhs_k_rows: bool
    # sink_cost, sink_moved: as `cost` and `moved` of a `Sink`
    sink_cost: float = 0.0
    sink_moved: int = 0
    sums: bool = False  # whether one operand is summed over the contraction, too
    batch: int = 1  # products of this shape in a row, whose loads go on from one to the next

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return dtype(self.dtype).itemsize

    @property
    def raw_dtype(self) -> str:
        """The format in which an operand waits to be transposed: FP8 does not pass through the PE array as it is."""
        return raw_format(self.dtype)

    @property
    def raw_itemsize(self) -> int:
        """Bytes of an element that waits to be transposed."""
        return dtype(self.raw_dtype).itemsize

    @property
    def k_tiles(self) -> int:
        """Matmuls that one output tile adds up."""
        return ceil(self.k / P)

    @property
    def accumulators(self) -> int:
        """PSUM banks for results."""
        return BANKS - self.sums - (0 if self.lhs_k_rows and self.rhs_k_rows else self.turning)

    @property
    def turning(self) -> int:
        """PSUM banks to transpose into."""
        results = ceil(self.m / P) * ceil(self.n / BANK)
        return max(TRANSPOSE_BANKS, min(MOST_TRANSPOSE_BANKS, BANKS - 2 * results))


@dataclass(slots=True, unsafe_hash=True)  # frozen ones take three times as long to make, and choosing makes many
class BlockedOperand:
    """One operand in a blocking: its free size in all, of a block, of the pieces that are loaded; its SBUF tiles. It
    never changes."""

    size: int
    unit: int  # free size of one matmul's operand
    k_rows: bool
    block: int
    piece: int
    tiles: int
    raw_tiles: int  # SBUF tiles for pieces that wait to be transposed

    @property
    def blocks(self) -> int:
        """Blocks of the operand."""
        return ceil(self.size / self.block)

    @property
    def pieces(self) -> int:
        """Pieces of a full block."""
        return ceil(self.block / self.piece)

    @property
    def products(self) -> int:
        """Matmul operands, and with it output tiles, in a full block."""
        return ceil(self.block / self.unit)


@dataclass(slots=True, unsafe_hash=True)
class Blocking:
    """It never changes. `lhs_resident` says which of the sides stays; `depth` counts the k tiles of a chunk."""

    lhs: BlockedOperand
    rhs: BlockedOperand
    lhs_resident: bool
    depth: int
    chunks: int
    keep: bool  # resident blocks keep all chunks
    spill: bool = False  # sums wait in SBUF from chunk to chunk, not in PSUM

    @property
    def resident(self) -> BlockedOperand:
        """The operand that stays."""
        return self.lhs if self.lhs_resident else self.rhs

    @property
    def streamed(self) -> BlockedOperand:
        """The operand that passes."""
        return self.rhs if self.lhs_resident else self.lhs

    def sbuf_bytes(self, itemsize: int, raw_itemsize: int | None = None) -> int:
        """Bytes per partition of all tiles."""
        sums = self.lhs.products * _tile_bytes(self.rhs.block, 1, 4) if self.spill else 0
        return sums + sum(
            side.tiles * _tile_bytes(side.piece, self.depth, itemsize)
            + side.raw_tiles * _raw_bytes(side.piece, self.depth, raw_itemsize or itemsize)
            for side in (self.lhs, self.rhs)
        )

    @property
    def loads(self) -> tuple[int, int]:
        """How many times all of the resident and all of the streamed operand are loaded."""
        streamed = 1 if self.chunks == 1 and self.streamed.blocks == 1 else self.resident.blocks
        return (1 if self.keep else self.streamed.blocks), streamed


def raw_format(name: str) -> str:
    """The format in which a tile of format `name` is transposed on the PE array: bfloat16 for FP8, which it holds
    exactly. Source: nki.isa.nc_transpose; trainium2_arch.rst:204 (FP8 comes out of the array in 16 bits)."""
    return "bfloat16" if dtype(name).itemsize == 1 else name


def _tile_bytes(piece: int, depth: int, itemsize: int) -> int:
    """Bytes per partition of the tile of a piece: [128, depth, piece]."""
    return -(-piece * depth * itemsize // TILE_ALIGN) * TILE_ALIGN


def _raw_bytes(piece: int, depth: int, itemsize: int) -> int:
    """The same of a piece that waits to be transposed: [128, piece / 128, depth * 128]."""
    return _tile_bytes(ceil(piece / P) * P, depth, itemsize)


@lru_cache(maxsize=1024)
def choose(problem: MatmulProblem, budget: int, chip: Chip) -> Blocking:
    """The blocking with the least estimated time among those that fit in `budget` bytes per partition.

    Raises CapacityError when not even the smallest blocks fit.
    """
    best = min(_candidates(problem, budget), key=_estimates(problem, chip), default=None)
    if best is None:
        raise CapacityError(
            f"a matmul of {problem.m} x {problem.k} x {problem.n} has no room for its blocks",
            code="TRN501",
            limit=f"{budget} bytes per partition left",
            got="at least two tiles of each operand",
            chip=chip.name,
            remedy="give the routine more SBUF, or release tiles before the call",
        )
    return _deeper(best, problem, budget)


def _deeper(found: Blocking, problem: MatmulProblem, budget: int) -> Blocking:
    """The blocking with as many tiles for the larger operand, or for what of it waits to be transposed, as there are
    pieces, and room: they are loaded while the call before works."""
    name = "rhs" if problem.n >= problem.m else "lhs"
    side: BlockedOperand = getattr(found, name)
    room = budget - found.sbuf_bytes(problem.itemsize, problem.raw_itemsize)
    pieces = ceil(side.size / side.piece) * found.chunks
    if side.k_rows:
        more = min(pieces - side.tiles, room // _tile_bytes(side.piece, found.depth, problem.itemsize))
        grown = replace(side, tiles=side.tiles + max(more, 0))
    else:
        raw = _raw_bytes(side.piece, found.depth, problem.raw_itemsize)
        grown = replace(side, raw_tiles=side.raw_tiles + max(min(pieces - side.raw_tiles, room // raw), 0))
    return replace(found, rhs=grown) if name == "rhs" else replace(found, lhs=grown)


def _candidates(problem: MatmulProblem, budget: int) -> Iterator[Blocking]:
    k_tiles = problem.k_tiles
    depths = sorted({min(d, k_tiles) for d in _DEPTHS} | ({k_tiles} if k_tiles <= 128 else set()))
    for lhs_resident in (True, False):
        sizes = ((problem.m, P, problem.lhs_k_rows), (problem.n, BANK, problem.rhs_k_rows))
        resident, streamed = sizes if lhs_resident else sizes[::-1]
        for depth in depths:
            for width in _widths(*streamed[:2]):
                tile = _tile_bytes(width, depth, problem.itemsize)
                raw_tile = _raw_bytes(width, depth, problem.raw_itemsize)
                for tiles, raw in product(
                    (8, 4, 3, 2) if problem.batch > 1 else (4, 3, 2), (0,) if streamed[2] else (3, 2, 1)
                ):
                    left = budget - tiles * tile - raw * raw_tile
                    if left > 0:
                        side = BlockedOperand(*streamed, width, width, tiles, raw)
                        yield from _residents(problem, side, resident, lhs_resident, depth, left)


def _residents(
    problem: MatmulProblem,
    streamed: BlockedOperand,
    size: tuple[int, int, bool],
    lhs_resident: bool,
    depth: int,
    left: int,
) -> Iterator[Blocking]:
    """What can be resident in the `left` bytes beside the streamed tiles."""
    chunks = ceil(problem.k_tiles / depth)
    for piece in _widths(*size[:2]):
        raw = 0 if size[2] else 2
        space = left - raw * _raw_bytes(piece, depth, problem.raw_itemsize)
        tile = _tile_bytes(piece, depth, problem.itemsize)
        across = ceil(size[0] / piece)
        in_psum = across if chunks == 1 else problem.accumulators // streamed.products * size[1] // piece
        rows, cols = (piece, streamed.block) if lhs_resident else (streamed.block, piece)
        sums = ceil(rows / P) * _tile_bytes(cols, 1, 4)  # of one piece
        options = [(min(in_psum, space // tile // chunks), True, False)]
        if chunks > 1:
            options.append((min(in_psum, space // tile // 2), False, False))
            options.append(((space - 3 * tile) // sums, False, True))
        for most, keep, spill in options:
            if most < 1 or (spill and most <= in_psum):
                continue
            blocks = ceil(across / min(most, across))
            pieces = ceil(across / blocks)  # blocks of about equal size
            tiles = 3 if spill else min(space // tile, pieces * (2 * chunks if keep and blocks > 1 else chunks))
            if not keep and not spill:
                tiles = min(space // tile, 3 * pieces)
            side = BlockedOperand(*size, pieces * piece, piece, tiles, raw)
            lhs, rhs = (side, streamed) if lhs_resident else (streamed, side)
            yield Blocking(lhs, rhs, lhs_resident, depth, chunks, keep, spill)


def _widths(size: int, unit: int) -> list[int]:
    """Widths of pieces worth trying: multiples of the unit, or the whole operand if it is smaller."""
    return sorted({min(w, size) for w in _WIDTHS if w % unit == 0 or w >= size} | ({size} if size < unit else set()))


def estimate(problem: MatmulProblem, blocking: Blocking, chip: Chip) -> float:
    """Seconds, roughly and for comparing: of the busiest of PE array, copies and DMA, plus what cannot overlap."""
    return _estimates(problem, chip)(blocking)


def _at_the_end(blocking: Blocking) -> float:
    """The share of the results that are finished by the last piece that comes: nothing is left that hides them."""
    blocks = blocking.resident.blocks * blocking.streamed.blocks
    return 1 / blocks / (blocking.resident.pieces if blocking.chunks == 1 else 1)


class _Flow(NamedTuple):
    """How one operand comes on chip: how many pieces, and for each the seconds of DMA, transposing and copying.

    `jobs`: copies out of PSUM, each of the transposes in one bank.
    """

    side: BlockedOperand
    pieces: int
    load: float
    turning: float = 0.0
    copying: float = 0.0
    jobs: int = 0


class _Estimates:
    """Seconds of one problem's blockings on a chip. What hangs on those alone is computed once, and so is what
    blockings have in common: choosing looks at a thousand of them, several times with other room."""

    def __init__(self, problem: MatmulProblem, chip: Chip) -> None:
        self.problem = problem
        vector, scalar, clock = chip.vector.clock.value, chip.scalar.clock.value, chip.tensor.clock.value
        self.columns = ceil(problem.m / P) * problem.n
        self.k_tiles, self.itemsize, self.raw_itemsize = problem.k_tiles, problem.itemsize, problem.raw_itemsize
        self.accumulators, self.turning = problem.accumulators, problem.turning
        matmuls = ceil(self.k_tiles / 2) if doubles(problem.dtype, chip) else self.k_tiles
        self.pe = self.columns * matmuls * chip.tensor.passes.of(problem.dtype).value / clock
        self.bandwidth = _bandwidth(chip)
        self.issue, self.clocks = (chip.vector.issue.value + chip.scalar.issue.value) / 2, vector + scalar
        self.sunk = self.columns * (problem.sink_cost or self._copy_time(BANK)) / BANK
        self.moved = problem.m * problem.n * (problem.sink_moved or self.itemsize)
        self.turn_latency = chip.tensor.latency.value / clock + chip.scalar.latency.value / scalar
        self.square = P * chip.tensor.transpose_passes.of(problem.raw_dtype).value / clock
        self.trigger = chip.dma.trigger.value
        self.latency = (chip.dma.trigger.value + chip.dma.start.value + chip.dma.completion.value) * 1e-9
        self.descriptor_bytes, self.descriptor = chip.dma.descriptor_bytes.value, chip.dma.descriptor.value
        self.engines = chip.dma.engines.value
        self.vector, self.addition = vector, BANK + chip.vector.issue.value  # cycles of a sum of one bank
        self.left = vector / (vector + scalar) if not problem.sink_cost else 1.0  # of Vector, for those
        self._known: dict[Blocking, float] = {}
        self._flows: dict[tuple[BlockedOperand, int, int], _Flow] = {}

    def __call__(self, blocking: Blocking) -> float:
        """See `estimate`."""
        found = self._known.get(blocking)
        if found is None:
            found = self._known[blocking] = self._of(blocking)
        return found

    def _of(self, blocking: Blocking) -> float:
        problem, resident, streamed, chunks = self.problem, blocking.resident, blocking.streamed, blocking.chunks
        pe, copies, dma, triggers, turns = self.pe, self.sunk, self.moved / self.bandwidth, 0.0, 0.0
        flows = [self._flow(side, times, chunks) for side, times in zip((resident, streamed), blocking.loads)]
        for flow in flows:
            pe, copies = pe + flow.pieces * flow.turning, copies + flow.pieces * flow.copying
            dma, triggers = dma + flow.pieces * flow.load, triggers + flow.pieces * self.trigger * 1e-9
            turns += flow.pieces * flow.jobs * self.turn_latency + flow.pieces * (flow.turning + flow.copying)
        if blocking.spill:
            sums = (chunks - 1) * self.columns / BANK * self.addition / self.vector
            copies = max(sums, copies + sums * self.left)
        steps = resident.blocks * streamed.blocks * chunks
        parts = (resident.pieces if blocking.spill else 1, 1)  # in which a step uses up an operand
        paces = [self._pace(flow, pe / steps / n) for flow, n in zip(flows, parts)]
        waits = [flow.pieces * pace for flow, pace in zip(flows, paces)][1 if blocking.keep else 0 :]
        exposed = sum(flow.load for flow in flows) + _exchange(blocking, flows[0].pieces * paces[0], pe)
        if problem.sink_cost:
            sinking = max(self.sunk, self.moved / self.bandwidth)
            exposed += min(pe, self.sunk) * self._held_back(blocking)
            exposed += min(max(pe, dma - self.moved / self.bandwidth), sinking) * _before_results(blocking)
        else:
            exposed += self.sunk * _at_the_end(blocking)
        if not problem.lhs_k_rows or not problem.rhs_k_rows:
            exposed += steps * 0.5 * self.turn_latency
        return _together(pe, copies, dma, triggers, turns / self.turning, *waits) + exposed

    def _held_back(self, blocking: Blocking) -> float:
        """The share of a block's product that waits until the results of the block before have left PSUM.

        Of several chunks, each goes through all banks of the block, the first of them only as far as banks are free.
        """
        banks = blocking.lhs.products * blocking.rhs.products
        if blocking.chunks == 1 or blocking.spill:
            return 0.0
        return (1 - 1 / blocking.chunks) * banks / self.accumulators

    def _flow(self, side: BlockedOperand, times: int, chunks: int) -> _Flow:
        """The flow of an operand that is loaded `times` times over."""
        key = side, times, chunks
        if key not in self._flows:
            self._flows[key] = self._made(side, times, chunks)
        return self._flows[key]

    def _made(self, side: BlockedOperand, times: int, chunks: int) -> _Flow:
        count = ceil(side.size / side.piece) * chunks * times
        depth = ceil(self.k_tiles / chunks)
        row = (side.piece if side.k_rows else depth * P) * self.itemsize
        rows = min(self.problem.k, depth * P) if side.k_rows else side.piece
        descriptors = rows * ceil(row / self.descriptor_bytes)
        load = rows * row / self.bandwidth + descriptors * self.descriptor * 1e-9 / self.engines
        if side.k_rows:
            return _Flow(side, count, load)
        across = min(side.piece, BANK * 4 // self.raw_itemsize)  # columns of one copy
        together = min(depth, max(1, BANK * 4 // self.raw_itemsize // side.piece))  # k tiles of one copy
        jobs = ceil(depth / together) * ceil(side.piece / across)
        copying = jobs * self._copy_time(across * together)
        return _Flow(side, count, load, ceil(side.piece / P) * depth * self.square, copying, jobs)

    def _pace(self, flow: _Flow, step: float) -> float:
        """Seconds from piece to piece: no faster than DMA, nor than tiles come free, `step` after being filled."""
        if flow.pieces * self.problem.batch <= flow.side.tiles and flow.side.k_rows:
            return flow.load
        held = step if flow.side.k_rows else flow.turning
        places = flow.side.tiles if flow.side.k_rows else flow.side.raw_tiles
        return max(flow.load, (self.latency + flow.load + held) / places)

    def _copy_time(self, columns: int) -> float:
        """Seconds of a copy out of PSUM when VectorE and ScalarE share the copies."""
        return (columns + self.issue) / self.clocks


@lru_cache(maxsize=64)
def _estimates(problem: MatmulProblem, chip: Chip) -> _Estimates:
    return _Estimates(problem, chip)


def doubles(name: str, chip: Chip) -> bool:
    """Whether the array contracts two rows of this format at once."""
    return chip.has("fp8_double_row") and name in FP8


def _before_results(blocking: Blocking) -> float:
    """The share of a block's product that is done before its first result: where sums wait in SBUF, all chunks but
    the last."""
    return 1 - 1 / blocking.chunks if blocking.spill else 0.0


def _together(*times: float) -> float:
    """Seconds that overlapping work takes: the longest, and more the more of the others are close to it."""
    return float(sum(time**8 for time in times) ** (1 / 8))


def _bandwidth(chip: Chip) -> float:
    """Bytes per second between HBM and SBUF."""
    return min(chip.dma.engines.value * chip.dma.engine_bandwidth.value, chip.hbm.bandwidth.value)


def _exchange(blocking: Blocking, time: float, pe: float) -> float:
    """Seconds that the PE array waits for resident blocks, all of which take `time` to come.

    One block's coming hides behind the work on one streamed block.
    """
    resident = blocking.resident
    if not blocking.keep:
        return 0.0
    load = time / resident.blocks
    work = pe / (resident.blocks * blocking.streamed.blocks)
    spare = resident.tiles / (resident.pieces * blocking.chunks) - 1
    return max(0.0, load - work) + (resident.blocks - 1) * max(0.0, load * (1 - spare) - work)
