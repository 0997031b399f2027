# SPDX-License-Identifier: Apache-2.0
"""Replacement of the first occurrence of eight values in each row."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work, as_float
from trnlab.isa.search.searching import EIGHT, INDICES, LONGEST, SHORTEST, as_indices, check_dims, matches


@register
class NcMatchReplace8(Instruction):
    """dst = data with the first occurrence of each of the eight vals of its row replaced by imm, in float32.

    dst_idx, if given, gets the places, all bits set where a value is not there (assumed). The values are taken from
    the last to the first: of equal ones, the last gets the first place. No place is replaced twice.
    """

    name = "nc_match_replace8"
    opcode = 48
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR,)
    operands = (
        OperandSpec("dst", "dst"),
        OperandSpec("dst_idx", "dst", optional=True, shape=("P", EIGHT), dtypes=INDICES),
        OperandSpec("data", "src"),
        OperandSpec("vals", "src", shape=("P", EIGHT)),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"imm": 0.0}
    required = ("dst", "data", "vals", "imm")
    sizes: ClassVar[Mapping[str, int]] = {"F": LONGEST}
    least: ClassVar[Mapping[str, int]] = {"F": SHORTEST}
    limits = ("data and vals have at most two free dimensions", "imm is a number")
    source = "nki.isa.nc_match_replace8"
    example = """
        x, best = nl.ones((128, 512), nl.float32), nl.ndarray((128, 8), nl.float32)
        rest = nl.ndarray((128, 512), nl.float32)
        nisa.max8(dst=best, src=x)
        nisa.nc_match_replace8(dst=rest, data=x, vals=best, imm=-1e30)  # x without its eight largest
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Few dimensions, and a number."""
        for name in ("data", "vals"):
            check_dims(self, ops, name, chip)
        if not isinstance(attrs["imm"], Real):
            self.refuse(
                "imm is not a number",
                limit="a number",
                got=attrs["imm"],
                chip=chip,
                remedy="pass a float",
                code="TRN411",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The values in turn, the last first, each taking its place."""
        lanes = arrays["dst"].shape[0]
        data, vals = (as_float(arrays[name]).reshape(lanes, -1) for name in ("data", "vals"))
        places = matches(data, vals, range(7, -1, -1))
        replaced = data.copy()
        lane, which = np.nonzero(places >= 0)
        replaced[lane, places[lane, which]] = np.float32(attrs["imm"])
        result = {"dst": replaced.reshape(arrays["dst"].shape)}
        if "dst_idx" in arrays:
            result["dst_idx"] = as_indices(places, arrays["dst_idx"])
        return result

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements of data."""
        return self.streaming({name: ops[name] for name in ("dst", "data")}, engine)
