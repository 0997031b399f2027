# SPDX-License-Identifier: Apache-2.0
"""Tiles of the PE array: a small matmul may use part of its rows and columns, beside others.

Source: nki.isa.nc_matmul and nc_matmul_mx (tiling mode, tile size). The reference also says of nc_matmul's arguments
that only rows can be tiled; its text and the architecture guides allow columns, and so do we.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.isa.base import Instruction, Operand

ARRAY = 128  # rows and columns
MOVING = 512  # columns in one bank of float32


def columns_of_psum(ops: Mapping[str, Operand], chip: Chip) -> int:
    """Moving columns that one matmul may have: a bank of float32, or all of PSUM in the format of dst."""
    if "dst" not in ops or not chip.has("long_matmul"):
        return MOVING
    return chip.psum.num_banks * chip.psum.bank_bytes_per_partition // max(ops["dst"].dtype.itemsize, 2)


def check_tile(
    instr: Instruction, ops: Mapping[str, Operand], attrs: Mapping[str, Any], chip: Chip, *, columns: bool = True
) -> None:
    """tile_position and tile_size, if given, name a tile that exists and that the stationary operand fits."""
    position, size = tuple(attrs["tile_position"] or ()), tuple(attrs["tile_size"] or ())
    if not position and not size:
        return
    if len(position) != 2 or len(size) != 2:
        instr.refuse(
            "a tile has a position and a size",
            limit="tile_position=(row, column) and tile_size=(rows, columns)",
            got=(position, size),
            chip=chip,
            remedy="pass both or neither",
            code="TRN411",
        )
    allowed = (32, 64, ARRAY) if chip.has("pe_tiles_32") else (64, ARRAY)
    for start, length, sizes in zip(position, size, (allowed, allowed if columns else (ARRAY,))):
        if length not in sizes or start % length or not 0 <= start < ARRAY:
            instr.refuse(
                "the array has no such tile",
                limit=f"sizes {sizes}, positions their multiples below {ARRAY}",
                got=(position, size),
                chip=chip,
                remedy="use a tile of the array",
                code="TRN411",
            )
    stationary = ops["stationary"]
    if stationary.partitions > size[0] or stationary.free > size[1]:
        instr.refuse(
            "the stationary operand is larger than its tile",
            limit=size,
            got=(stationary.partitions, stationary.free),
            chip=chip,
            remedy="use a larger tile of the array, or slice the operand",
            code="TRN406",
        )


def tile_of(attrs: Mapping[str, Any]) -> tuple[int, ...]:
    """Row, column, rows and columns of the tile; empty for the whole array."""
    if not attrs["tile_position"]:
        return ()
    tile = (*attrs["tile_position"], *attrs["tile_size"])
    return () if tile[2:] == (ARRAY, ARRAY) else tuple(int(length) for length in tile)
