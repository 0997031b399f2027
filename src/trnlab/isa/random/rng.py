# SPDX-License-Identifier: Apache-2.0
"""Random bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec
from trnlab.isa.random.random_streams import KEY, SEED, STATE, check_key, check_state, draw, numbered_bits

INTEGERS = frozenset({"int32", "uint32", "int16", "uint16", "int8", "uint8"})


@register
class Rng(Instruction):
    """dst = the lowest bits of 32 random bits per element.

    From the engine's generator where its state is an operand; else from seed, a number or one 32-bit integer per
    partition, and the element's place only. With a key of 64 bits (two words, the low one first), element (p, f) is
    number first + p * step + f of the key's own sequence: numbers that do not depend on how a tensor is cut into
    tiles. A key of six words is Philox's key and counter, which XLA's programs come with.
    """

    name = "rng"
    opcode = 15
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR, Engine.GPSIMD)
    engine_features: ClassVar[Mapping[Engine, str]] = {Engine.GPSIMD: "gpsimd_rng"}
    operands = (OperandSpec("dst", "dst", dtypes=INTEGERS), STATE, SEED, KEY)
    attrs: ClassVar[Mapping[str, Any]] = {"seed": 0, "first": 0, "step": 0}
    limits = (
        "W is the words of the engine's generator (isa.random_streams)",
        "K is 2 (Threefry) or 6 (Philox: a key, then a counter)",
        "with a key, numbers run from 0 to 2**63 - 1",
    )
    source = "nki.isa.rng; the streams, the seed and the key are ours"
    example = """
        bits = nl.ndarray((128, 512), nl.uint32)
        nisa.rng(dst=bits)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The state is of this engine; numbers fit."""
        check_state(self, ops, "state", engine, chip)
        check_key(self, ops, chip)
        first, step = attrs.get("first", 0), attrs.get("step", 0)
        if min(first, step) < 0 or first + ops["dst"].partitions * step + ops["dst"].free >= 2**63:
            self.refuse(
                "not a range of numbers of a sequence",
                limit="0 to 2**63 - 1",
                got=f"first {first}, step {step}",
                chip=chip,
                remedy="pass a first number and a step that are not negative",
                code="TRN411",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The bits, cut to the width of dst."""
        dst = arrays["dst"]
        keyed = "key" in arrays and "state" not in arrays
        bits, state = (numbered_bits(arrays, attrs), {}) if keyed else draw(arrays, attrs)
        return {"dst": bits.astype(dst.dtype).reshape(dst.shape), **state}
