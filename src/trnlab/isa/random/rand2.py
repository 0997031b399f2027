# SPDX-License-Identifier: Apache-2.0
"""Uniform random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    ANY_DTYPE,
    FLOAT32,
    Array,
    Arrays,
    Dataflow,
    Engine,
    Instruction,
    Operand,
    OperandSpec,
    Work,
    per_partition,
)
from trnlab.isa.random.random_streams import SEED, STATE, check_state, draw

FORMATS = ANY_DTYPE - {"bool", "float8_e4m3fn", "float8_e8m0fnu"}


@register
class Rand2(Instruction):
    """dst = min + u * (max - min) in float32, u from the top 24 of 32 random bits per element, 0 <= u < 1.

    min and max are numbers or one value per partition. The bits come from VectorE's generator where its state is an
    operand, else from seed and the element's place only. How the hardware makes a number of its bits is not
    published.
    """

    name = "rand2"
    opcode = 33
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR,)
    feature = "vector_xorwow"
    operands = (
        OperandSpec("dst", "dst", dtypes=FORMATS),
        STATE,
        OperandSpec("min", "src", immediate=True, shape=("P", "1"), dtypes=FLOAT32),
        OperandSpec("max", "src", immediate=True, shape=("P", "1"), dtypes=FLOAT32),
        SEED,
    )
    attrs: ClassVar[Mapping[str, Any]] = {"seed": 0}
    limits = ("min is below max", "W is the words of the engine's generator (isa.random_streams)")
    source = "nki.isa.rand2; the seed argument is ours"
    example = """
        x = nl.ndarray((128, 512), nl.float32)
        nisa.rand2(dst=x, min=-1.0, max=1.0)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """A range, and a state of this engine."""
        low, high = attrs.get("min"), attrs.get("max")
        if low is not None and high is not None and not low < high:
            self.refuse(
                "not a range",
                limit="min < max",
                got=f"{low}..{high}",
                chip=chip,
                remedy="swap or spread them",
                code="TRN411",
            )
        check_state(self, ops, "state", engine, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """A fraction, stretched and moved."""
        bits, state = draw(arrays, attrs)
        fraction = (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
        low, high = (per_partition(arrays.get(name, attrs.get(name)), 2) for name in ("min", "max"))
        with np.errstate(all="ignore"):
            values = low + fraction * (high - low)
        return {"dst": np.asarray(values, np.float32).reshape(arrays["dst"].shape), **state}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements."""
        return self.streaming(ops, engine, flops=2)
