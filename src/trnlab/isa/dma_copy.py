# SPDX-License-Identifier: Apache-2.0
"""Data movement between HBM and SBUF, and within each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    DMA_MEMORIES,
    INT32,
    SBUF_ONLY,
    Array,
    Arrays,
    Engine,
    Instruction,
    Memory,
    Operand,
    OperandSpec,
    Work,
)

MAX_DESCRIPTOR_BYTES = 64 * 1024


@register
class DmaCopy(Instruction):
    """dst = src, element by element in row-major order of (partition, free dimensions), cast through float32.

    The engine only triggers the transfer, on DMA queue `queue`; the DMA engines do the work. With `index`, rows are
    gathered: dst[p, :] = src[index[p], :], where the first dimension of src counts the rows of a table in HBM. A row
    that does not exist is an error when the program runs. Descriptors of a gather are made by GpSimd.
    """

    name = "dma_copy"
    opcode = 17
    engines = (Engine.SYNC, Engine.SCALAR, Engine.GPSIMD, Engine.VECTOR, Engine.TENSOR)
    operands = (
        OperandSpec("dst", "dst", DMA_MEMORIES, shape=("", "")),
        OperandSpec("src", "src", DMA_MEMORIES, shape=("", "")),
        OperandSpec("index", "src", SBUF_ONLY, optional=True, shape=("I", "1"), dtypes=INT32),
    )
    is_dma = True
    cost_kinds = ("dma.copy", "dma.gather")
    limits = (
        "dst and src have the same number of elements",
        "a gather is triggered by gpsimd, from HBM to SBUF, one index (I) and one row of src per partition of dst",
    )
    source = "nki.isa.dma_copy; nki-dma-overview.rst; nki-dge.rst:45-149 (descriptor generation)"

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Sizes agree."""
        dst, src = ops["dst"], ops["src"]
        if "index" in ops:
            self._check_gather(dst, src, ops["index"], engine, chip)
        elif dst.partitions * dst.free != src.partitions * src.free:
            self.refuse(
                "dst and src differ in size", limit=f"{src.partitions} x {src.free} elements",
                got=f"{dst.partitions} x {dst.free}", chip=chip, remedy="slice them to the same size", code="TRN409",
            )  # fmt: skip

    def _check_gather(self, dst: Operand, src: Operand, index: Operand, engine: Engine, chip: Chip) -> None:
        if engine is not Engine.GPSIMD:
            self.refuse(
                "only gpsimd makes the descriptors of a gather", limit="gpsimd", got=engine.name.lower(), chip=chip,
                remedy="issue it with engine=GPSIMD", code="TRN401",
            )  # fmt: skip
        for name, op, memory in (("src", src, Memory.HBM), ("dst", dst, Memory.SBUF)):
            if op.memory is not memory:
                self.refuse(
                    f"operand {name!r} of a gather lies in the wrong memory", limit=memory.name, got=op.memory.name,
                    chip=chip, remedy=f"use a tensor in {memory.name}", code="TRN403",
                )  # fmt: skip
        if (dst.partitions, dst.free) != (index.partitions, src.free):
            self.refuse(
                "dst does not hold one row of src per index", limit=f"[{index.partitions}, {src.free}]",
                got=f"[{dst.partitions}, {dst.free}]", chip=chip, remedy="slice dst and index alike", code="TRN409",
            )  # fmt: skip

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The same elements in the shape of dst. Raises IndexError for a row that does not exist."""
        src, shape = arrays["src"], arrays["dst"].shape
        if "index" not in arrays:
            return {"dst": src.reshape(shape)}
        rows = arrays["index"].reshape(-1)
        if rows.size and not (rows.min() >= 0 and rows.max() < src.shape[0]):
            raise IndexError(f"row {rows.min()}..{rows.max()} of a table of {src.shape[0]} rows")
        return {"dst": src[rows].reshape(shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """Descriptors of the shorter contiguous run of the two sides, in bytes of the wider format."""
        dst, src = ops["dst"], ops["src"]
        item = max(dst.dtype.itemsize, src.dtype.itemsize)
        elements = dst.partitions * dst.free
        run = min(op.contiguous_bytes // op.dtype.itemsize for op in (dst, src))
        size = min(run * item, MAX_DESCRIPTOR_BYTES)
        on_chip = [op.partitions for op in (dst, src) if op.memory is Memory.SBUF]
        return Work(
            "dma.gather" if "index" in ops else "dma.copy", n=size, m=-(-elements * item // size),
            k=min(on_chip, default=128), itemsize=item,
            dtype=src.dtype.name if src.dtype == dst.dtype else "mixed",
            strided=run == 1 and elements > 1, nbytes=elements * item,
        )  # fmt: skip
