# SPDX-License-Identifier: Apache-2.0
"""Gather within each partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trnlab.isa import register
from trnlab.isa.base import (
    MOVABLE,
    SBUF_ONLY,
    Array,
    Arrays,
    Dataflow,
    Engine,
    Instruction,
    Operand,
    OperandSpec,
    Work,
)


@register
class NcNGather(Instruction):
    """dst[p, i] = data[p, indices[p, i]], free dimensions flattened; bits move as they are.

    An index outside of the row is undefined on hardware and an error here. The hardware runs one group of
    instructions for every 512 indices.
    """

    name = "nc_n_gather"
    opcode = 25
    dataflow = Dataflow.PARTITION
    partly_used = ("data",)
    engines = (Engine.GPSIMD,)
    operands = (
        OperandSpec("dst", "dst", SBUF_ONLY, shape=("P", "I"), dtypes=MOVABLE),
        OperandSpec("data", "src", SBUF_ONLY, dtypes=MOVABLE),
        OperandSpec("indices", "src", SBUF_ONLY, shape=("P", "I"), dtypes=frozenset({"uint32"})),
    )
    same_dtype = ("dst", "data")
    source = "nki.isa.nc_n_gather"
    example = """
        table, index = nl.ones((128, 64), nl.float32), nl.zeros((128, 32), nl.uint32)
        taken = nl.ndarray((128, 32), nl.float32)
        nisa.nc_n_gather(dst=taken, data=table, indices=index)
    """

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """One row after the other. Raises IndexError for an index that leaves the row."""
        lanes = arrays["dst"].shape[0]
        data, indices = arrays["data"].reshape(lanes, -1), arrays["indices"].reshape(lanes, -1).astype(np.int64)
        return {"dst": np.take_along_axis(data, indices, axis=1).reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """As many elements as indices, whatever the length of data."""
        dst = ops["dst"]
        return Work("gpsimd.nc_n_gather", dst.free, 0, dst.partitions, max(dst.dtype.itemsize, 4), "mixed")
