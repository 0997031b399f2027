# SPDX-License-Identifier: Apache-2.0
"""Copy of the elements that a predicate picks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec
from trnlab.isa.opcheck import check_value

PREDICATES = frozenset({"uint8", "uint16", "uint32", "bool"})


@register
class TensorCopyPredicated(Instruction):
    """dst = src where predicate is not zero; the other elements of dst keep what they held.

    src is a tile of dst's format or a number. reverse_pred copies where the predicate is zero.
    """

    name = "tensor_copy_predicated"
    opcode = 14
    dataflow = Dataflow.POINTWISE
    engines = (Engine.VECTOR,)
    operands = (
        OperandSpec("dst", "dst", rw=True),
        OperandSpec("src", "src", immediate=True),
        OperandSpec("predicate", "src", dtypes=PREDICATES),
    )
    attrs: ClassVar[Mapping[str, Any]] = {"reverse_pred": False}
    same_dtype = ("dst", "src")
    indirect = ("dst", "predicate")
    not_both_psum = ("src", "predicate")
    limits = ("a number as src is whole when dst holds integers",)
    source = "nki.isa.tensor_copy_predicated"
    example = """
        keep, x, y = nl.ones((128, 512), nl.uint8), nl.ones((128, 512), nl.float32), nl.zeros((128, 512), nl.float32)
        nisa.tensor_copy_predicated(dst=y, src=x, predicate=keep)  # y = x where keep
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """A number must exist in dst's format."""
        if "src" not in ops:
            check_value(self, attrs["src"], ops["dst"].dtype, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """A bit-exact choice between src and dst."""
        dst = arrays["dst"]
        taken = (arrays["predicate"].reshape(dst.shape) != 0) != bool(attrs["reverse_pred"])
        src = arrays["src"].reshape(dst.shape) if "src" in arrays else np.asarray(attrs["src"]).astype(dst.dtype)
        return {"dst": np.where(taken, src, dst)}
