# SPDX-License-Identifier: Apache-2.0
"""Mean and variance from the statistics of parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.isa import register
from trnlab.isa.base import Array, Arrays, Dataflow, Engine, Instruction, Operand, OperandSpec, Work, as_float


@register
class BnAggr(Instruction):
    """dst = mean and variance of each row, from (count, mean, variance * count) triples as bn_stats makes them.

    In float32; the variance is the mean squared distance from the mean.
    """

    name = "bn_aggr"
    opcode = 27
    dataflow = Dataflow.PARTITION
    engines = (Engine.VECTOR,)
    operands = (OperandSpec("dst", "dst", shape=("P", "2")), OperandSpec("data", "src"))
    multiples: ClassVar[Mapping[str, int]] = {"F": 3}
    source = "nki.isa.bn_aggr"
    example = """
        x, stats = nl.ones((128, 512), nl.float32), nl.ndarray((128, 6), nl.float32)
        both = nl.ndarray((128, 2), nl.float32)
        nisa.bn_stats(dst=stats, data=x)
        nisa.bn_aggr(dst=both, data=stats)  # mean and variance
    """

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Parts weighed by their counts."""
        count, means, squares = np.moveaxis(as_float(arrays["data"]).reshape(arrays["dst"].shape[0], -1, 3), 2, 0)
        with np.errstate(all="ignore"):
            total = count.sum(axis=1, dtype=np.float32)
            mean = (count * means).sum(axis=1, dtype=np.float32) / total
            between = count * np.square(means - mean[:, None])
            variance = (squares + between).sum(axis=1, dtype=np.float32) / total
        return {"dst": np.stack([mean, variance], axis=1).reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """N numbers, three for each part."""
        return self.streaming({"data": ops["data"]}, engine, flops=3)
