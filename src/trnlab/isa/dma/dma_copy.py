# SPDX-License-Identifier: Apache-2.0
"""Data movement between HBM and SBUF, and within each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    DMA_MEMORIES,
    INT32,
    MOVABLE,
    SBUF_ONLY,
    Array,
    Arrays,
    Dataflow,
    Engine,
    Instruction,
    Memory,
    Operand,
    OperandSpec,
    Work,
    as_float,
)
from trnlab.isa.dma.indices import check_options, row_numbers
from trnlab.isa.opcheck import check_packed

MAX_DESCRIPTOR_BYTES = 64 * 1024
DGE_MODES = ("unknown", "none")


@register
class DmaCopy(Instruction):
    """dst = src, element by element in row-major order of (partition, free dimensions), cast through float32.

    The engine only triggers the transfer, on DMA queue `queue`; the DMA engines do the work. With `index`, rows of a
    table in HBM are picked, the first dimension of one side counting them: indirect "src" gathers, dst[p, :] =
    src[index[p], :], and "dst" scatters, dst[index[p], :] = src[p, :]. With per_row=False one index names the first
    of adjacent rows (a start address known only at run time). A row that does not exist is an error when the program
    runs, or left out with oob_mode skip. Descriptors of a gather or scatter are made by GpSimd. fills: whoever
    records a scatter says that it and others like it name every row of the table between them, each once or in the
    order of one queue; so nothing is kept of what was there, and none waits for another.
    """

    name = "dma_copy"
    opcode = 17
    dataflow = Dataflow.POINTWISE
    engines = (Engine.SYNC, Engine.SCALAR, Engine.GPSIMD, Engine.VECTOR, Engine.TENSOR)
    operands = (
        OperandSpec("dst", "dst", DMA_MEMORIES, rw=True, shape=("", ""), dtypes=MOVABLE),
        OperandSpec("src", "src", DMA_MEMORIES, shape=("", ""), dtypes=MOVABLE),
        OperandSpec("index", "src", SBUF_ONLY, optional=True, shape=("I", "1"), dtypes=INT32),
    )
    attrs: ClassVar[Mapping[str, Any]] = {
        "indirect": "src",
        "per_row": True,
        "dge_mode": "unknown",
        "oob_mode": "error",
        "priority": None,
        "fills": False,
    }
    is_dma = True
    cost_kinds = ("dma.copy", "dma.gather", "dma.ring")
    limits = (
        "dst and src have the same number of elements; packed formats are copied as they are, not cast",
        "per_row: triggered by gpsimd, table in HBM; one index (I), one row of the table for each row",
        "not per_row: one index (I = 1), rows of the table as long as those of the tile",
        "indirect is src or dst; oob_mode is error or skip; dge_mode is unknown, swdge, hwdge or none",
        "hwdge (chips with hwdge) is triggered by sync or scalar, does not cast, and takes no index per row",
        "priority is 0..3 on chips with dma_priority",
    )
    source = "nki.isa.dma_copy; nki-dma-overview.rst; nki-dge.rst:45-149 (descriptor generation)"
    example = """
        x, out = nl.ones((128, 512), nl.float32), nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
    """

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Rows that are not picked, or left out, stay, unless others fill them."""
        if attrs["indirect"] == "dst":
            return not attrs["fills"]
        return bool(attrs["oob_mode"] == "skip")

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Sizes agree, and descriptors can be made."""
        dst, src = ops["dst"], ops["src"]
        check_packed(self, ops, chip)
        check_options(self, attrs, engine, chip)
        if attrs["dge_mode"] == "hwdge" and (dst.dtype != src.dtype or ("index" in ops and attrs["per_row"])):
            self.refuse(
                "hardware descriptors neither cast nor pick rows",
                limit=self.limits[4],
                got=f"{dst.dtype.name} from {src.dtype.name}",
                chip=chip,
                remedy="use dge_mode unknown",
                code="TRN411",
            )
        if "index" in ops:
            self._check_rows(ops, attrs, engine, chip)
        elif attrs["indirect"] != "src":
            self.refuse(
                "a scatter needs an index",
                limit="operand index",
                got=None,
                chip=chip,
                remedy="pass index=",
                code="TRN402",
            )
        elif dst.partitions * dst.free != src.partitions * src.free:
            self.refuse(
                "dst and src differ in size",
                limit=f"{src.partitions} x {src.free} elements",
                got=f"{dst.partitions} x {dst.free}",
                chip=chip,
                remedy="slice them to the same size",
                code="TRN409",
            )

    def _check_rows(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        if attrs["indirect"] not in ("src", "dst"):
            self.refuse(
                "no such side to pick rows from",
                limit="src or dst",
                got=attrs["indirect"],
                chip=chip,
                remedy="name one",
                code="TRN411",
            )
        side, other = ("src", "dst") if attrs["indirect"] == "src" else ("dst", "src")
        table, tile, index = ops[side], ops[other], ops["index"]
        if attrs["per_row"] and engine is not Engine.GPSIMD:
            self.refuse(
                "only gpsimd makes the descriptors of a gather",
                limit="gpsimd",
                got=engine.name.lower(),
                chip=chip,
                remedy="issue it with engine=GPSIMD",
                code="TRN401",
            )
        if attrs["per_row"] and table.memory is not Memory.HBM:
            self.refuse(
                f"operand {side!r} of a gather lies in the wrong memory",
                limit="HBM",
                got=table.memory.name,
                chip=chip,
                remedy="use a tensor in HBM",
                code="TRN403",
            )
        rows = tile.partitions if attrs["per_row"] else 1
        if (index.partitions, tile.free) != (rows, table.free) or tile.partitions > max(table.partitions, rows):
            self.refuse(
                f"{other} does not hold one row of {side} per index",
                limit=f"[{index.partitions}, {table.free}]",
                got=f"[{tile.partitions}, {tile.free}]",
                chip=chip,
                remedy=f"slice {other} and index alike",
                code="TRN409",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The same elements in the shape of dst. Raises IndexError for a row that does not exist."""
        src, dst = arrays["src"], arrays["dst"]
        if "index" not in arrays:
            return {"dst": src.reshape(dst.shape)}
        gathers = attrs["indirect"] == "src"
        table, tile = (src, dst) if gathers else (dst, src)
        index = arrays["index"].reshape(-1)
        if not attrs["per_row"]:
            index = index.astype(np.int64) + np.arange(tile.shape[0])
        rows, kept = row_numbers(index, table.shape[0], attrs["oob_mode"])
        if gathers and len(kept) == tile.shape[0]:
            return {"dst": src[rows].reshape(dst.shape)}
        into, source = (kept, rows) if gathers else (rows, kept)
        result = dst.copy() if dst.dtype == src.dtype else as_float(dst).copy()
        result[into] = src[source].reshape(len(source), *dst.shape[1:])
        return {"dst": result}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """Descriptors of the shorter contiguous run of the two sides, in bytes of the wider format."""
        dst, src = ops["dst"], ops["src"]
        item = max(dst.dtype.itemsize, src.dtype.itemsize)
        moved = src if attrs["indirect"] == "dst" else dst
        elements = moved.partitions * moved.free
        run = min(op.contiguous_bytes // op.dtype.itemsize for op in (dst, src))
        size = min(run * item, MAX_DESCRIPTOR_BYTES)
        kind = "dma.ring" if attrs["dge_mode"] == "none" else "dma.copy"
        kind = "dma.gather" if "index" in ops and attrs["per_row"] else kind
        on_chip = [op.partitions for op in (dst, src) if op.memory is Memory.SBUF]
        return Work(
            kind,
            n=size,
            m=-(-elements * item // size),
            k=min(on_chip, default=128),
            itemsize=item,
            dtype=src.dtype.name if src.dtype == dst.dtype else "mixed",
            strided=run == 1 and elements > 1,
            nbytes=elements * item,
        )
