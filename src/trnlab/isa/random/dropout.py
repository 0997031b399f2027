# SPDX-License-Identifier: Apache-2.0
"""Random zeroing of elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    FLOATS,
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


@register
class Dropout(Instruction):
    """dst = 0 with probability prob, data otherwise (not rescaled); prob is a number or one value per partition.

    An element is dropped when the top 24 of its random bits, as a fraction, are below prob. The bits come from the
    engine's generator where its state is an operand, else from seed and the element's place only.
    """

    name = "dropout"
    opcode = 16
    dataflow = Dataflow.POINTWISE
    engines = (Engine.VECTOR,)
    operands = (
        OperandSpec("dst", "dst"),
        STATE,
        OperandSpec("data", "src"),
        OperandSpec("prob", "src", optional=True, immediate=True, shape=("P", "1"), dtypes=FLOATS),
        SEED,
    )
    attrs: ClassVar[Mapping[str, Any]] = {"prob": 0.0, "seed": 0}
    same_dtype = ("dst", "data")
    limits = (
        "prob as a number is between 0 and 1; with integer data a tile of it is float32",
        "W is the words of the engine's generator (isa.random_streams)",
    )
    source = "nki.isa.dropout; the stream and the seed argument are ours"
    example = """
        x, y = nl.ones((128, 512), nl.float32), nl.ndarray((128, 512), nl.float32)
        nisa.dropout(dst=y, data=x, prob=0.1)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """A probability."""
        prob = attrs.get("prob")
        if "prob" not in ops and (prob is None or not 0 <= prob <= 1):
            self.refuse(
                "not a probability",
                limit="0..1",
                got=prob,
                chip=chip,
                remedy="pass a number from 0 to 1",
                code="TRN411",
            )
        if "prob" in ops and ops["data"].dtype.is_integer and ops["prob"].dtype.name != "float32":
            self.refuse(
                "probabilities of integer data are float32",
                limit="float32",
                got=ops["prob"].dtype.name,
                chip=chip,
                remedy="cast prob with tensor_copy first",
                code="TRN408",
            )
        check_state(self, ops, "state", engine, chip)

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """data or zero, bit-exact."""
        data = arrays["data"].reshape(arrays["dst"].shape)
        bits, state = draw(arrays, attrs)
        fraction = (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
        prob = per_partition(arrays.get("prob", attrs.get("prob")), 2)
        dropped = (fraction < prob).reshape(data.shape)
        return {"dst": np.where(dropped, np.zeros((), data.dtype), data), **state}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements."""
        return self.streaming(ops, engine, flops=1)
