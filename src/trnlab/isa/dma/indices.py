# SPDX-License-Identifier: Apache-2.0
"""Options that transfers share: who makes descriptors, what an index may do, the class of service.

Sources: nki.isa.dma_copy, dma_transpose, dma_compute; nki/deep-dives/nki-dge.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa.base import Array, Engine, Instruction

DGE_MODES = ("unknown", "swdge", "hwdge", "none")
OOB_MODES = ("error", "skip")
PRIORITIES = range(4)
HARDWARE = (Engine.SYNC, Engine.SCALAR)  # sequencers that command the descriptor generators


def check_options(instr: Instruction, attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
    """dge_mode, oob_mode and priority exist, on this engine and generation."""
    for name, known in (("dge_mode", DGE_MODES), ("oob_mode", OOB_MODES)):
        if attrs.get(name, known[0]) not in known:
            instr.refuse(
                f"no such {name}",
                limit=", ".join(known),
                got=attrs[name],
                chip=chip,
                remedy="use one of these",
                code="TRN411",
            )
    mode = attrs.get("dge_mode", "unknown")
    if mode == "hwdge" and not chip.has("hwdge"):
        instr.refuse(
            "this generation has no hardware to make descriptors",
            limit="hwdge",
            got=mode,
            chip=chip,
            remedy="use dge_mode unknown",
            code="TRN414",
        )
    wrong = (mode == "hwdge" and engine not in HARDWARE) or (mode == "swdge" and engine is not Engine.GPSIMD)
    if wrong:
        instr.refuse(
            f"{engine.name.lower()} does not make descriptors this way",
            limit="gpsimd for swdge; sync or scalar for hwdge",
            got=f"{mode} on {engine.name.lower()}",
            chip=chip,
            remedy="choose another engine, or dge_mode unknown",
            code="TRN401",
        )
    priority = attrs.get("priority")
    if priority is not None and not (chip.has("dma_priority") and priority in PRIORITIES):
        instr.refuse(
            "no such class of service",
            limit="0..3 on chips with dma_priority",
            got=priority,
            chip=chip,
            remedy="leave priority out",
            code="TRN414",
        )


def row_numbers(index: Array, count: int, oob_mode: str) -> tuple[Array, Array]:
    """The rows that an index names in a table of `count` rows, and which places of the index name them.

    Raises IndexError for a row that does not exist; with oob_mode skip such places are left out.
    """
    rows = index.astype(np.int64)
    inside = (rows >= 0) & (rows < count)
    if oob_mode == "error" and not inside.all():
        raise IndexError(f"row {rows.min()}..{rows.max()} of a table of {count} rows")
    kept = np.flatnonzero(inside)
    return rows[kept], kept
