# SPDX-License-Identifier: Apache-2.0
"""Where eight values stand in each row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work, as_float
from trnlab.isa.search.searching import EIGHT, INDICES, LONGEST, SHORTEST, as_indices, check_dims, matches


@register
class NcFindIndex8(Instruction):
    """dst[p, i] = the first place in data[p] that equals vals[p, i], all bits set where there is none.

    Values are compared in float32. Of equal values among the eight, the first gets the first place, the second the
    second.
    """

    name = "nc_find_index8"
    opcode = 47
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR,)
    operands = (
        OperandSpec("dst", "dst", shape=("P", EIGHT), dtypes=INDICES),
        OperandSpec("data", "src"),
        OperandSpec("vals", "src", shape=("P", EIGHT)),
    )
    sizes: ClassVar[Mapping[str, int]] = {"F": LONGEST}
    least: ClassVar[Mapping[str, int]] = {"F": SHORTEST}
    limits = ("data and vals have at most two free dimensions",)
    source = "nki.isa.nc_find_index8; release-notes/components/nki.rst:75 (equal values)"
    example = """
        x, best = nl.ones((128, 512), nl.float32), nl.ndarray((128, 8), nl.float32)
        where = nl.ndarray((128, 8), nl.uint32)
        nisa.max8(dst=best, src=x)
        nisa.nc_find_index8(dst=where, data=x, vals=best)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Few dimensions."""
        for name in ("data", "vals"):
            check_dims(self, ops, name, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The values in turn, each taking its place."""
        lanes = arrays["dst"].shape[0]
        data, vals = (as_float(arrays[name]).reshape(lanes, -1) for name in ("data", "vals"))
        return {"dst": as_indices(matches(data, vals, range(8)), arrays["dst"])}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements of data."""
        return self.streaming({"data": ops["data"]}, engine)
