# SPDX-License-Identifier: Apache-2.0
"""Random bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Engine, Instruction, OperandSpec
from trnlab.isa.random_streams import SEED, tile_bits

INTEGERS = frozenset({"int32", "uint32", "int16", "uint16", "int8", "uint8"})


@register
class Rng(Instruction):
    """dst = the lowest bits of 32 random bits per element, a function of seed and place only.

    seed is a number or a tile with one 32-bit integer per partition.
    """

    name = "rng"
    opcode = 15
    engines = (Engine.VECTOR, Engine.GPSIMD)
    engine_features: ClassVar[Mapping[Engine, str]] = {Engine.GPSIMD: "gpsimd_rng"}
    operands = (OperandSpec("dst", "dst", dtypes=INTEGERS), SEED)
    attrs: ClassVar[Mapping[str, Any]] = {"seed": 0}
    source = "nki.isa.rng; the stream and the seed argument are ours"

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The bits, cut to the width of dst."""
        dst = arrays["dst"]
        return {"dst": tile_bits(arrays, attrs).astype(dst.dtype).reshape(dst.shape)}
