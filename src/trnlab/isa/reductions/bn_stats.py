# SPDX-License-Identifier: Apache-2.0
"""Mean and variance of each row, as counts, means and sums of squares that bn_aggr can combine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work, as_float


@register
class BnStats(Instruction):
    """dst = (count, mean, variance * count) of the elements at even places of each row, then of those at odd places.

    In float32. Places without elements (a row of one) have count, mean and variance zero (assumed).
    """

    name = "bn_stats"
    opcode = 26
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR,)
    operands = (OperandSpec("dst", "dst", shape=("P", "6")), OperandSpec("data", "src"))
    sizes: ClassVar[Mapping[str, int]] = {"F": 512}
    source = "nki.isa.bn_stats"
    example = """
        x, stats = nl.ones((128, 512), nl.float32), nl.ndarray((128, 6), nl.float32)
        nisa.bn_stats(dst=stats, data=x)
    """

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Sums, then sums of squared distances from the mean."""
        data = as_float(arrays["data"]).reshape(arrays["dst"].shape[0], -1)
        parts = []
        with np.errstate(all="ignore"):
            for half in (data[:, 0::2], data[:, 1::2]):
                count = np.float32(half.shape[1])
                mean = half.sum(axis=1, dtype=np.float32) / max(count, np.float32(1))
                squares = np.square(half - mean[:, None]).sum(axis=1, dtype=np.float32)
                parts += [np.full_like(mean, count), mean, squares]
        return {"dst": np.stack(parts, axis=1).reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N elements."""
        return self.streaming(ops, engine, flops=4)
