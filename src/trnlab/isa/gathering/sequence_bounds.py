# SPDX-License-Identifier: Apache-2.0
"""Where the run of equal segment numbers begins and ends that an element belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import SBUF_ONLY, Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work

FORMATS = frozenset({"float32", "int32"})


@register
class SequenceBounds(Instruction):
    """dst = [first, end], n numbers each: the first place of each element's run of equal ids, and one past its last.

    Ids are whole and not negative; 0 is padding, for which first is n and end is -1. There is one row.
    """

    name = "sequence_bounds"
    opcode = 36
    dataflow = Dataflow.PARTITION
    engines = (Engine.GPSIMD,)
    operands = (
        OperandSpec("dst", "dst", SBUF_ONLY, shape=("1", "B"), dtypes=FORMATS),
        OperandSpec("segment_ids", "src", SBUF_ONLY, shape=("1", "F"), dtypes=FORMATS),
    )
    limits = ("B is 2 F",)
    source = "nki.isa.sequence_bounds; nki/test/test_nki_isa_sequence_bounds.py"
    example = """
        segments, bounds = nl.ones((1, 512), nl.float32), nl.ndarray((1, 2, 512), nl.float32)
        nisa.sequence_bounds(dst=bounds, segment_ids=segments)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """dst holds two numbers per id."""
        wanted = 2 * ops["segment_ids"].free
        if ops["dst"].free != wanted:
            self.refuse(
                "dst does not hold two numbers per id",
                limit=f"[1, {wanted}]",
                got=f"[1, {ops['dst'].free}]",
                chip=chip,
                remedy="make dst [1, 2, n]",
                code="TRN409",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Runs from the places where the id changes."""
        ids = arrays["segment_ids"].reshape(-1)
        n = len(ids)
        changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        begins, ends = np.concatenate([[0], changes]), np.concatenate([changes, [n]])
        run = np.searchsorted(begins, np.arange(n), side="right") - 1
        padding = ids == 0
        bounds = np.stack([np.where(padding, n, begins[run]), np.where(padding, -1, ends[run])])
        return {"dst": bounds.astype(np.int32).reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N ids on one partition."""
        return self.streaming({"segment_ids": ops["segment_ids"]}, engine)
