# SPDX-License-Identifier: Apache-2.0
"""What the instructions of the MX formats have in common: packed operands, and the place of their scales.

A packed operand reaches a `meaning` as bare words, so an attribute (`dst_format`, `moving_format`, ...) repeats its
format there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import Array, Instruction, Operand
from trnlab.numerics.mx import scale_codes, scale_rows

SCALES = frozenset({"float8_e8m0fnu", "uint8"})
STARTS = (0, 4, 8, 12)  # in a quadrant: four tensors may keep their scales in one tile
QUADRANT = 32


def formats_of(ops: Mapping[str, Operand], *names: str) -> dict[str, str]:
    """The attributes that repeat the formats of packed operands."""
    return {f"{name}_format": ops[name].dtype.name for name in names if name in ops}


def check_format(
    instr: Instruction, ops: Mapping[str, Operand], attrs: Mapping[str, Any], name: str, chip: Chip
) -> None:
    """The attribute that repeats an operand's format does so."""
    wanted, got = ops[name].dtype.name, attrs[f"{name}_format"]
    if got != wanted:
        instr.refuse(
            f"{name}_format is not the format of {name}",
            limit=wanted,
            got=got,
            chip=chip,
            remedy=f"pass {name}_format={wanted!r}",
            code="TRN411",
        )


def check_scales(instr: Instruction, ops: Mapping[str, Operand], data: str, scale: str, chip: Chip) -> None:
    """The scales of `data` have room, in the quadrants of their groups."""
    needed = int(scale_rows(ops[data].partitions)[-1]) + 1
    if ops[scale].partitions < needed:
        instr.refuse(
            f"operand {scale!r} has no room for the scales",
            limit=f"{needed} partitions",
            got=ops[scale].partitions,
            chip=chip,
            remedy="give it as many partitions as the data, or a part of them from its start on",
            code="TRN409",
        )
    quadrants = ops[data].first_partition // QUADRANT, ops[scale].first_partition // QUADRANT
    if quadrants[0] != quadrants[1]:
        instr.refuse(
            f"operand {scale!r} starts in another quadrant than {data!r}",
            limit=f"quadrant {quadrants[0]}",
            got=f"quadrant {quadrants[1]}",
            chip=chip,
            remedy="keep scales in the quadrant of their data",
            code="TRN405",
        )


def codes_of(scales: Array, partitions: int) -> Array:
    """uint8 [P / 8, N]: the scale codes of a tile with so many partitions, from its scale operand."""
    used = scales.reshape(scales.shape[0], -1)[scale_rows(partitions)]
    return scale_codes(used) if used.dtype.kind == "f" else np.asarray(used, np.uint8)
