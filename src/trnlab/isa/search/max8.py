# SPDX-License-Identifier: Apache-2.0
"""The eight largest of each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work, as_float
from trnlab.isa.search.searching import EIGHT, LONGEST, SHORTEST, check_dims


@register
class Max8(Instruction):
    """dst = the eight largest elements of each row, the largest first, in float32; equal ones count each.

    NaN counts as smaller than everything (assumed).
    """

    name = "max8"
    opcode = 35
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR,)
    operands = (OperandSpec("dst", "dst", shape=("P", EIGHT)), OperandSpec("src", "src"))
    sizes: ClassVar[Mapping[str, int]] = {"F": LONGEST}
    least: ClassVar[Mapping[str, int]] = {"F": SHORTEST}
    limits = ("src has at most two free dimensions",)
    source = "nki.isa.max8"
    example = """
        x, best = nl.ones((128, 512), nl.float32), nl.ndarray((128, 8), nl.float32)
        nisa.max8(dst=best, src=x)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Few dimensions."""
        check_dims(self, ops, "src", chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The last eight of each sorted row, turned round."""
        src = as_float(arrays["src"]).reshape(arrays["dst"].shape[0], -1)
        ascending = -np.sort(-src, axis=1)  # NaN last
        return {"dst": ascending[:, :8].reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements of src."""
        return self.streaming({"src": ops["src"]}, engine)
