# SPDX-License-Identifier: Apache-2.0
"""Storing of a random generator's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work
from trnlab.isa.random.random_streams import STATE, WORD, check_state


@register
class RandGetState(Instruction):
    """dst = state: the words of the generator of each lane, six on GpSimd, four times six on VectorE."""

    name = "rand_get_state"
    opcode = 32
    dataflow = Dataflow.PARTITION
    engines = (Engine.GPSIMD, Engine.VECTOR)
    engine_features: ClassVar[Mapping[Engine, str]] = {Engine.VECTOR: "vector_xorwow"}
    feature = "gpsimd_rng"
    operands = (
        OperandSpec("dst", "dst", shape=("P", "W"), dtypes=WORD),
        replace(STATE, role="src", optional=False, rw=False),
    )
    limits = ("W is the words of the engine's generator (isa.random_streams)",)
    source = "nki.isa.rand_get_state; trainium3_arch.rst:208"
    example = """
        state = nl.ones((128, 6), nl.uint32)
        nisa.rand_set_state(src_seeds=state)
        nisa.rand_get_state(dst=state)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The state is of this engine."""
        check_state(self, ops, "state", engine, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The same words."""
        return {"dst": arrays["state"].reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """W words per lane."""
        return self.streaming({"dst": ops["dst"]}, engine)
