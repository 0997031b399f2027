# SPDX-License-Identifier: Apache-2.0
"""Masking by an affine condition of the indices: causal masks, triangles, padding."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.alu import alu_op
from trnlab.isa.base import SBUF_ONLY, Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work
from trnlab.isa.elementwise.affine import affine_values, check_pattern

COMPARISONS = frozenset({"is_equal", "not_equal", "is_gt", "is_ge", "is_lt", "is_le"})


@register
class AffineSelect(Instruction):
    """dst = on_true where `value cmp_op 0` holds, on_false elsewhere; value is the ramp that `iota` makes."""

    name = "affine_select"
    opcode = 12
    dataflow = Dataflow.POINTWISE
    engines = (Engine.GPSIMD,)
    operands = (OperandSpec("dst", "dst", SBUF_ONLY), OperandSpec("on_true", "src", SBUF_ONLY))
    attrs: ClassVar[Mapping[str, Any]] = {
        "pattern": (),
        "offset": 0,
        "channel_multiplier": 0,
        "cmp_op": "greater_equal",
        "on_false": 0.0,
    }
    limits = (
        "pattern has one to four dimensions and covers dst; offset, multiplier and steps are 32-bit",
        "cmp_op is one of is_equal, not_equal, is_gt, is_ge, is_lt, is_le",
        "on_false is a number",
    )
    source = "nki.isa.affine_select"
    example = """
        scores = nl.ones((128, 128), nl.float32)
        nisa.affine_select(dst=scores, pattern=[[-1, 128]], channel_multiplier=1, on_true_tile=scores,
                           on_false_value=-1e30, cmp_op=nl.greater_equal)  # causal: keep where p - f >= 0
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The pattern covers dst and the condition is a comparison."""
        check_pattern(self, ops["dst"], attrs, chip)
        try:
            known = alu_op(attrs["cmp_op"]).name in COMPARISONS
        except KeyError:
            known = False
        if not known:
            self.refuse(
                "not a comparison",
                limit=", ".join(sorted(COMPARISONS)),
                got=attrs["cmp_op"],
                chip=chip,
                remedy="use one of these",
                code="TRN412",
            )
        if not isinstance(attrs["on_false"], Real):
            self.refuse(
                "on_false is not a number",
                limit="a number",
                got=attrs["on_false"],
                chip=chip,
                remedy="pass a float",
                code="TRN411",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Selection by the sign of the ramp; integers stay integers where on_false is one of their values."""
        source = arrays["on_true"].reshape(arrays["dst"].shape)
        keep = alu_op(attrs["cmp_op"])(affine_values(attrs, source.shape[0]), np.int32(0)).reshape(source.shape) != 0
        fill = attrs["on_false"]
        if source.dtype.kind == "f" or int(fill) != fill or not _holds(source.dtype, int(fill)):
            source, fill = source.astype(np.float32), np.float32(fill)
        return {"dst": np.where(keep, source, np.asarray(fill, source.dtype))}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements."""
        return self.streaming(ops, engine, flops=1)


def _holds(dtype: np.dtype[Any], value: int) -> bool:
    info = np.iinfo(dtype)
    return bool(info.min <= value <= info.max)
