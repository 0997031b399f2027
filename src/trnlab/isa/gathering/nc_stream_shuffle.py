# SPDX-License-Identifier: Apache-2.0
"""Movement between the partitions of a quadrant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import MOVABLE, Array, Arrays, Engine, Instruction, Operand, OperandSpec
from trnlab.isa.rules import allowed_starts

QUADRANT = 32
KEEP = 255


@register
class NcStreamShuffle(Instruction):
    """dst[32 q + i] = src[32 q + shuffle_mask[i]] in every quadrant q; where the mask is 255, dst stays as it is.

    Bits move as they are. dst and src may be the same tile, and may differ in their number of partitions.
    """

    name = "nc_stream_shuffle"
    opcode = 29
    partly_used = ("src",)
    engines = (Engine.VECTOR,)
    operands = (
        OperandSpec("dst", "dst", rw=True, shape=("Q", "F"), dtypes=MOVABLE),
        OperandSpec("src", "src", dtypes=MOVABLE),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"shuffle_mask": tuple(range(QUADRANT))}
    required = ("dst", "src", "shuffle_mask")
    same_dtype = ("dst", "src")
    limits = (
        "shuffle_mask is 32 numbers, each 0..31 or 255, and none that is used names a row beyond src",
        "dst and src start where a tile of the larger height, rounded up to quadrants, may start",
    )
    source = "nki.isa.nc_stream_shuffle"
    example = """
        x, y = nl.ones((32, 512), nl.float32), nl.ndarray((32, 512), nl.float32)
        nisa.nc_stream_shuffle(dst=y, src=x, shuffle_mask=[0] * 32)  # the first partition to all
    """

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Only where some partitions stay as they are."""
        return KEEP in attrs["shuffle_mask"]

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The mask is one, its rows exist, and both tiles start where so many quadrants may."""
        mask, dst, src = attrs["shuffle_mask"], ops["dst"], ops["src"]
        if len(mask) != QUADRANT or any(m != KEEP and not 0 <= m < QUADRANT for m in mask):
            self.refuse(
                "not a mask",
                limit="32 numbers, 0..31 or 255",
                got=mask,
                chip=chip,
                remedy="name one row for each partition of a quadrant",
                code="TRN411",
            )
        last = max((row for _, row in _moves(mask, dst.partitions)), default=0)
        if last >= src.partitions:
            self.refuse(
                "the mask names a row beyond src",
                limit=f"{src.partitions} rows",
                got=last,
                chip=chip,
                remedy="give src as many rows as the mask reaches",
                code="TRN409",
            )
        active = -(-max(dst.partitions, src.partitions) // QUADRANT) * QUADRANT
        for name, op in (("dst", dst), ("src", src)):
            if op.first_partition not in allowed_starts(active):
                self.refuse(
                    f"operand {name!r} starts on partition {op.first_partition}",
                    limit=f"{allowed_starts(active)} with {active} active partitions",
                    got=op.first_partition,
                    chip=chip,
                    remedy="place the tile so that it starts on one of these",
                    code="TRN405",
                )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Rows by the mask, over what dst held."""
        result, src = arrays["dst"].copy(), arrays["src"]
        moves = np.array(_moves(attrs["shuffle_mask"], result.shape[0]), np.int64).reshape(-1, 2)
        result[moves[:, 0]] = src[moves[:, 1]].reshape(-1, *result.shape[1:])
        return {"dst": result}


def _moves(mask: tuple[int, ...], partitions: int) -> list[tuple[int, int]]:
    """(row of dst, row of src) for every row that is written."""
    rows = ((p, mask[p % QUADRANT]) for p in range(partitions))
    return [(p, p // QUADRANT * QUADRANT + m) for p, m in rows if m != KEEP]
