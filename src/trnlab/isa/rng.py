# SPDX-License-Identifier: Apache-2.0
"""Random bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Engine, Instruction, Operand, OperandSpec
from trnlab.isa.random_streams import SEED, STATE, check_state, draw

INTEGERS = frozenset({"int32", "uint32", "int16", "uint16", "int8", "uint8"})


@register
class Rng(Instruction):
    """dst = the lowest bits of 32 random bits per element.

    From the engine's generator where its state is an operand; else from seed, a number or one 32-bit integer per
    partition, and the element's place only.
    """

    name = "rng"
    opcode = 15
    engines = (Engine.VECTOR, Engine.GPSIMD)
    engine_features: ClassVar[Mapping[Engine, str]] = {Engine.GPSIMD: "gpsimd_rng"}
    operands = (OperandSpec("dst", "dst", dtypes=INTEGERS), STATE, SEED)
    attrs: ClassVar[Mapping[str, Any]] = {"seed": 0}
    limits = ("W is the words of the engine's generator (isa.random_streams)",)
    source = "nki.isa.rng; the stream and the seed argument are ours"
    example = """
        bits = nl.ndarray((128, 512), nl.uint32)
        nisa.rng(dst=bits)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The state is of this engine."""
        check_state(self, ops, "state", engine, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The bits, cut to the width of dst."""
        dst = arrays["dst"]
        bits, state = draw(arrays, attrs)
        return {"dst": bits.astype(dst.dtype).reshape(dst.shape), **state}
