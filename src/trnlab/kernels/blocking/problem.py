# SPDX-License-Identifier: Apache-2.0
"""A product of matrices, and how it is cut into blocks that fit on chip: what stays in SBUF and what streams past it.

One operand is *resident*: block by block it is brought in, and meets all of the other, *streamed* operand before
it leaves. The contraction is cut into chunks when it is too long for both to be there in full. A block product of
several chunks waits for its next one in PSUM, so it must fit there; unless it is spilled to SBUF, which takes VectorE
an addition per chunk. A resident block keeps all of its chunks while it can.

Letters: M stationary free, N moving free, K contraction; R resident, S streamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.products.nc_matmul import FP8
from trnlab.kernels.blocks import BANK, BANKS, P
from trnlab.numerics.dtypes import dtype

TILE_ALIGN = 64  # bytes; SBUF tiles start on multiples
TRANSPOSE_BANKS = 2  # PSUM banks set aside when an operand must be transposed
MOST_TRANSPOSE_BANKS = 6  # where results are few
AHEAD = 2  # groups of pieces: so far ahead operands are transposed, as tiles come free
Count = Any  # an integer, or an array of them where a blocking stands for many, which are estimated side by side


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
    banks: int = BANKS  # of PSUM
    open_rows: int = 0  # as of a `Sink`

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
        return self.banks - self.sums - (0 if self.lhs_k_rows and self.rhs_k_rows else self.turning)

    @property
    def turning(self) -> int:
        """PSUM banks to transpose into."""
        results = ceil(self.m / P) * ceil(self.n / BANK)
        return max(TRANSPOSE_BANKS, min(MOST_TRANSPOSE_BANKS, self.banks - 2 * results))


@dataclass(slots=True, unsafe_hash=True)  # frozen ones take three times as long to make, and choosing makes many
class BlockedOperand:
    """One operand in a blocking: its free size in all, of a block, of the pieces that are loaded; its SBUF tiles. It
    never changes."""

    size: int
    unit: int  # free size of one matmul's operand
    k_rows: bool
    block: Count
    piece: Count
    tiles: Count
    raw_tiles: Count  # SBUF tiles for pieces that wait to be transposed

    @property
    def blocks(self) -> Count:
        """Blocks of the operand."""
        return -(-self.size // self.block)

    @property
    def pieces(self) -> Count:
        """Pieces of a full block."""
        return -(-self.block // self.piece)

    @property
    def products(self) -> Count:
        """Matmul operands, and with it output tiles, in a full block."""
        return -(-self.block // self.unit)


@dataclass(slots=True, unsafe_hash=True)
class Blocking:
    """It never changes. `lhs_resident` says which of the sides stays; `depth` counts the k tiles of a chunk."""

    lhs: BlockedOperand
    rhs: BlockedOperand
    lhs_resident: bool
    depth: Count
    chunks: Count
    keep: Any  # whether resident blocks keep all chunks
    spill: Any = False  # whether sums wait in SBUF from chunk to chunk, not in PSUM

    @property
    def resident(self) -> BlockedOperand:
        """The operand that stays."""
        return self.lhs if self.lhs_resident else self.rhs

    @property
    def streamed(self) -> BlockedOperand:
        """The operand that passes."""
        return self.rhs if self.lhs_resident else self.lhs

    def sbuf_bytes(self, itemsize: int, raw_itemsize: int | None = None) -> Count:
        """Bytes per partition of all tiles."""
        sums = self.lhs.products * tile_bytes(self.rhs.block, 1, 4) if self.spill else 0
        return sums + sum(
            side.tiles * tile_bytes(side.piece, self.depth, itemsize)
            + side.raw_tiles * raw_bytes(side.piece, self.depth, raw_itemsize or itemsize)
            for side in (self.lhs, self.rhs)
        )

    @property
    def open_rows(self) -> Count:
        """Blocks of rows of the result whose tiles come in turn: some of each before any is whole."""
        in_blocks = self.lhs_resident or self.rhs.blocks == 1
        return np.where(in_blocks, self.lhs.products, -(-self.lhs.size // self.lhs.unit))

    @property
    def loads(self) -> tuple[Count, Count]:
        """How many times all of the resident and all of the streamed operand are loaded."""
        once = (self.chunks == 1) & (self.streamed.blocks == 1)
        return np.where(self.keep, 1, self.streamed.blocks), np.where(once, 1, self.resident.blocks)


def raw_format(name: str) -> str:
    """The format in which a tile of format `name` is transposed on the PE array: bfloat16 for FP8, which it holds
    exactly. Source: nki.isa.nc_transpose; trainium2_arch.rst:204 (FP8 comes out of the array in 16 bits)."""
    return "bfloat16" if dtype(name).itemsize == 1 else name


def tile_bytes(piece: Count, depth: Count, itemsize: int) -> Count:
    """Bytes per partition of the tile of a piece: [128, depth, piece]."""
    return -(-piece * depth * itemsize // TILE_ALIGN) * TILE_ALIGN


def raw_bytes(piece: Count, depth: Count, itemsize: int) -> Count:
    """The same of a piece that waits to be transposed: [128, piece / 128, depth * 128]."""
    return tile_bytes(-(-piece // P) * P, depth, itemsize)


def doubles(name: str, chip: Chip) -> bool:
    """Whether the array contracts two rows of this format at once."""
    return chip.has("fp8_double_row") and name in FP8
