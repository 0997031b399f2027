# SPDX-License-Identifier: Apache-2.0
"""What the instructions that look for the eight largest, or for eight values, have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import Array, Instruction, Operand

EIGHT = "8"  # elements per partition, as a shape
SHORTEST, LONGEST = 8, 16384  # elements per partition that can be searched
INDICES = frozenset({"uint16", "uint32"})
MAX_FREE_DIMS = 2


def check_dims(instr: Instruction, ops: Mapping[str, Operand], name: str, chip: Chip) -> None:
    """At most three dimensions, the partition among them; those of one element do not count."""
    dims = sum(count > 1 for _, count in ops[name].dims)
    if dims > MAX_FREE_DIMS:
        instr.refuse(
            f"operand {name!r} has too many dimensions",
            limit=f"{MAX_FREE_DIMS} free dimensions",
            got=dims,
            chip=chip,
            remedy="search one outer index at a time",
            code="TRN407",
        )


def matches(data: Array, vals: Array, order: Iterable[int]) -> Array:
    """int64 [P, 8]: the first place in each row of data [P, N] that holds each of vals [P, 8], -1 where none does.

    Values are taken in `order`; a place that one of them has taken is not given to the next.
    """
    free = np.ones(data.shape, bool)
    places = np.full(vals.shape, -1, np.int64)
    lanes = np.arange(len(data))
    for i in order:
        hit = (data == vals[:, i : i + 1]) & free
        found = hit.any(axis=1)
        place = hit.argmax(axis=1)
        places[found, i] = place[found]
        free[lanes[found], place[found]] = False
    return places


def as_indices(places: Array, dst: Array) -> Array:
    """Places in the format and shape of dst; all bits set for none."""
    return places.astype(dst.dtype).reshape(dst.shape)
