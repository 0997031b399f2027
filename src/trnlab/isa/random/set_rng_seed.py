# SPDX-License-Identifier: Apache-2.0
"""Seeding of VectorE's random generator from one number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import INT32, Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work
from trnlab.isa.random.random_streams import STATE, check_state, seeded


@register
class SetRngSeed(Instruction):
    """state = the start of the stream that belongs to the 32-bit number src_seeds, in each lane another.

    The same seed gives the same numbers. How a seed fills the state is not published; ours is in isa.random_streams.
    """

    name = "set_rng_seed"
    opcode = 30
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR,)
    operands = (
        replace(STATE, optional=False, rw=False),
        OperandSpec("src_seeds", "src", shape=("1", "1"), dtypes=INT32 | {"float32"}),
    )
    limits = ("W is the words of the engine's generator (isa.random_streams)",)
    source = "nki.isa.set_rng_seed; the stream is ours"
    example = """
        seed, bits = nl.ones((1, 1), nl.uint32), nl.ndarray((128, 512), nl.uint32)
        nisa.set_rng_seed(src_seeds=seed)
        nisa.rng(dst=bits)  # the same bits for the same seed
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The state is of this engine."""
        check_state(self, ops, "state", engine, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """A state for each lane, from the bits of the seed."""
        state = arrays["state"]
        seed = int(np.ascontiguousarray(arrays["src_seeds"]).view(np.uint32).reshape(-1)[0])
        lanes = state.shape[0]
        return {"state": seeded(seed, lanes, state.size // lanes).reshape(state.shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """One element."""
        return Work("vector.set_rng_seed", 1, 0, ops["state"].partitions)
