# SPDX-License-Identifier: Apache-2.0
"""The places of the elements that are not zero, and how many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import SBUF_ONLY, Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work

CORE = 16
_INT32 = range(-(1 << 31), 1 << 31)


@register
class NonzeroWithCount(Instruction):
    """dst = the places of src's nonzero elements plus index_offset, padding_val up to F numbers, then their count.

    Each GpSimd processor works on the first of its sixteen partitions: rows 0, 16, 32, ... of the tiles. The other
    rows of dst stay as they are.
    """

    name = "nonzero_with_count"
    opcode = 49
    dataflow = Dataflow.PARTITION
    partly_used = ("src", "data")
    engines = (Engine.GPSIMD,)
    feature = "gpsimd_nonzero"
    operands = (
        OperandSpec("dst", "dst", SBUF_ONLY, rw=True, shape=("P", "D"), dtypes=frozenset({"int32"})),
        OperandSpec("src", "src", SBUF_ONLY, dtypes=frozenset({"float32", "int32"})),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"index_offset": 0, "padding_val": -1}
    limits = ("D is F + 1", "index_offset and padding_val are 32-bit")
    source = "nki.isa.nonzero_with_count"
    example = """
        x, where = nl.ones((128, 512), nl.int32), nl.ndarray((128, 513), nl.int32)
        nisa.nonzero_with_count(dst=where, src=x)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """dst has room for the count, numbers have 32 bits."""
        wanted = ops["src"].free + 1
        if ops["dst"].free != wanted:
            self.refuse(
                "dst does not hold the places and their count",
                limit=f"{wanted} elements per partition",
                got=ops["dst"].free,
                chip=chip,
                remedy="make dst one element longer than src",
                code="TRN409",
            )
        for name in ("index_offset", "padding_val"):
            if not isinstance(attrs[name], int) or attrs[name] not in _INT32:
                self.refuse(
                    f"{name} is not a 32-bit integer",
                    limit="-2**31..2**31 - 1",
                    got=attrs[name],
                    chip=chip,
                    remedy="pass an int",
                    code="TRN411",
                )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Every sixteenth row."""
        lanes = arrays["dst"].shape[0]
        result, src = arrays["dst"].reshape(lanes, -1).copy(), arrays["src"].reshape(lanes, -1)
        for p in range(0, lanes, CORE):
            places = np.flatnonzero(src[p] != 0)
            result[p, :-1] = attrs["padding_val"]
            result[p, : len(places)] = (places + attrs["index_offset"]).astype(np.int32)
            result[p, -1] = len(places)
        return {"dst": result.reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements of src."""
        return self.streaming({"src": ops["src"]}, engine)
