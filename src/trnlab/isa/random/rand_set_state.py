# SPDX-License-Identifier: Apache-2.0
"""Loading of a random generator's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import SBUF_ONLY, Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work
from trnlab.isa.random.random_streams import STATE, WORD, check_state


@register
class RandSetState(Instruction):
    """state = src_seeds: the words of the generator of each lane, six on GpSimd, four times six on VectorE."""

    name = "rand_set_state"
    opcode = 31
    dataflow = Dataflow.PARTITION
    engines = (Engine.GPSIMD, Engine.VECTOR)
    engine_features: ClassVar[Mapping[Engine, str]] = {Engine.VECTOR: "vector_xorwow"}
    feature = "gpsimd_rng"
    operands = (
        replace(STATE, optional=False, rw=False),
        OperandSpec("src_seeds", "src", SBUF_ONLY, shape=("P", "W"), dtypes=WORD),
    )
    limits = ("W is the words of the engine's generator (isa.random_streams)",)
    source = "nki.isa.rand_set_state; trainium3_arch.rst:208"
    example = """
        state = nl.ones((128, 6), nl.uint32)
        nisa.rand_set_state(src_seeds=state)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The state is of this engine."""
        check_state(self, ops, "state", engine, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The same words."""
        return {"state": arrays["src_seeds"].reshape(arrays["state"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """W words per lane."""
        return self.streaming({"src_seeds": ops["src_seeds"]}, engine)
