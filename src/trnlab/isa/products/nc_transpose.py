# SPDX-License-Identifier: Apache-2.0
"""Transposition of a tile: partitions become elements and elements partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    MOVABLE,
    Array,
    Arrays,
    Dataflow,
    Engine,
    Instruction,
    Memory,
    Operand,
    OperandSpec,
    Work,
)

VECTOR_BLOCK = 32


@register
class NcTranspose(Instruction):
    """dst[f, p] = data[p, f]. Free dimensions of data are flattened.

    On TensorE the data passes through the array against an identity, so that dst is in PSUM and data in SBUF; chips
    with an exact transpose mode keep every bit, on the others the data are multiplied, which is exact for finite
    values (an infinity or NaN there spoils its column; here it is kept). On VectorE a block of at most 32 by 32 moves
    between lanes.
    """

    name = "nc_transpose"
    opcode = 2
    dataflow = Dataflow.TRANSPOSE
    engines = (Engine.TENSOR, Engine.VECTOR)
    operands = (
        OperandSpec("dst", "dst", shape=("F", "P"), dtypes=MOVABLE),
        OperandSpec("data", "src", dtypes=MOVABLE),
    )
    sizes: ClassVar[Mapping[str, int]] = {"F": 128, "P": 128}
    same_dtype = ("dst", "data")
    limits = (
        "on tensor: data in SBUF, dst in PSUM, formats of 16 or 32 bits",
        "on vector: at most 32 by 32",
    )
    source = "nki.isa.nc_transpose; trainium2_arch.rst:197-204 (transpose mode)"
    example = """
        x = nl.ones((128, 64), nl.float32)
        turned = nl.ndarray((64, 128), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=x)
    """

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """The limits of the engine that was chosen."""
        if engine is Engine.VECTOR:
            self._check_block(ops["data"], chip)
            return
        for name, memory in (("dst", Memory.PSUM), ("data", Memory.SBUF)):
            if ops[name].memory is not memory:
                self.refuse(
                    f"operand {name!r} lies in the wrong memory for tensor",
                    limit=memory.name,
                    got=ops[name].memory.name,
                    chip=chip,
                    remedy=f"use a tile in {memory.name}",
                    code="TRN403",
                )
        dtype = ops["data"].dtype
        if dtype.itemsize == 1:  # comes out as 16 bits, so that no dst has the format of data
            self.refuse(
                "a format that cannot pass through the PE array",
                limit=self.limits[0],
                got=dtype.name,
                chip=chip,
                remedy="cast it to bfloat16 or float32 first, or transpose blocks on vector",
                code="TRN408",
            )

    def _check_block(self, data: Operand, chip: Chip) -> None:
        if max(data.partitions, data.free) > VECTOR_BLOCK:
            self.refuse(
                "the block is too large for vector",
                limit=f"{VECTOR_BLOCK} by {VECTOR_BLOCK}",
                got=f"{data.partitions} by {data.free}",
                chip=chip,
                remedy="use engine=TENSOR, or transpose by blocks",
                code="TRN406",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The same values, swapped."""
        data = arrays["data"]
        return {"dst": data.reshape(data.shape[0], -1).T.reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """On tensor: data is stationary (M = F), the identity of size P moves."""
        data = ops["data"]
        if engine is Engine.VECTOR:
            return self.streaming({"data": data}, engine)
        return Work(
            "pe.transpose",
            data.partitions,
            data.free,
            data.partitions,
            data.dtype.itemsize,
            data.dtype.name,
            self.psum_mask(ops),
        )
