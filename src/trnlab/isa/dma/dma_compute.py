# SPDX-License-Identifier: Apache-2.0
"""Addition on the way of a transfer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    DMA_MEMORIES,
    INT32,
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

SOURCES = tuple(f"src{i}" for i in range(16))


@register
class DmaCompute(Instruction):
    """dst = src0 + src1 + ... (up to sixteen) in float32, element by element in row-major order.

    With `index` and indirect "dst", rows of a table in HBM are added to: dst[index[p]] += src0[p]. With indirect
    "src", rows of a table are added to a tile: dst[p] += src0[index[p]]. An index names a row at most once. A row
    that does not exist is an error when the program runs, or left out with oob_mode skip.
    """

    name = "dma_compute"
    opcode = 39
    dataflow = Dataflow.POINTWISE
    accumulates = True
    engines = (Engine.SYNC, Engine.SCALAR, Engine.GPSIMD, Engine.VECTOR, Engine.TENSOR)
    operands = (
        OperandSpec("dst", "dst", DMA_MEMORIES, rw=True, shape=("", "")),
        *(OperandSpec(name, "src", DMA_MEMORIES, optional=i > 0, shape=("", "")) for i, name in enumerate(SOURCES)),
        OperandSpec("index", "src", SBUF_ONLY, optional=True, shape=("I", "1"), dtypes=INT32),
    )
    attrs: ClassVar[Mapping[str, Any]] = {
        "reduce_op": "add",
        "scales": None,
        "unique_indices": True,
        "indirect": None,
        "oob_mode": "error",
    }
    is_dma = True
    cost_kinds = ("dma.compute",)
    limits = (
        "reduce_op is add, scales (one per source) are 1.0, unique_indices is true",
        "dst and the sources have the same number of elements",
        "with index: gpsimd, indirect is src or dst, one source; the table is in HBM, the tile in SBUF has I rows",
    )
    source = "nki.isa.dma_compute; trainium3_arch.rst:270 (half the rate of a copy)"
    example = """
        x, y = (nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm) for _ in range(2))
        nisa.dma_copy(dst=x, src=nl.ones((128, 512), nl.float32))
        nisa.dma_compute(dst=y, srcs=[x, x], reduce_op=nl.add)
    """

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """What is added to."""
        return attrs["indirect"] is not None

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Only sums, of operands that fit each other."""
        sources = [name for name in SOURCES if name in ops]
        scales = attrs["scales"] if attrs["scales"] is not None else (1.0,) * len(sources)
        if attrs["reduce_op"] != "add" or any(s != 1 for s in scales) or len(scales) != len(sources):
            self.refuse(
                "the DMA engines only add",
                limit=self.limits[0],
                got=(attrs["reduce_op"], scales),
                chip=chip,
                remedy="scale with tensor_scalar first",
                code="TRN411",
            )
        check_options(self, attrs, engine, chip)
        if ("index" in ops) != (attrs["indirect"] is not None) or attrs["indirect"] not in (None, "src", "dst"):
            self.refuse(
                "an index and the side that it picks from come together",
                limit="indirect is src or dst",
                got=attrs["indirect"],
                chip=chip,
                remedy="pass both or neither",
                code="TRN411",
            )
        if "index" in ops:
            self._check_rows(ops, attrs, engine, chip)
            return
        for name in sources:
            if ops[name].partitions * ops[name].free != ops["dst"].partitions * ops["dst"].free:
                self._differ(name, ops[name], ops["dst"], chip)

    def _check_rows(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        table, tile = ("dst", "src0") if attrs["indirect"] == "dst" else ("src0", "dst")
        places = engine is Engine.GPSIMD and ops[table].memory is Memory.HBM and ops[tile].memory is Memory.SBUF
        if not places or "src1" in ops or not attrs["unique_indices"]:
            self.refuse(
                "rows picked by an index cannot be added like this",
                limit=self.limits[2],
                chip=chip,
                got=f"{engine.name.lower()}, {table} in {ops[table].memory.name}, {tile} in {ops[tile].memory.name}",
                remedy="issue it on gpsimd with one source",
                code="TRN401",
            )
        if (ops[tile].partitions, ops[tile].free) != (ops["index"].partitions, ops[table].free):
            self._differ(tile, ops[tile], ops[table], chip)

    def _differ(self, name: str, op: Operand, other: Operand, chip: Chip) -> None:
        self.refuse(
            f"operand {name!r} differs in size",
            limit=f"{other.partitions} x {other.free} elements",
            got=f"{op.partitions} x {op.free}",
            chip=chip,
            remedy="slice them to the same size",
            code="TRN409",
        )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """Sums in the order of the sources. Raises IndexError for a row that does not exist."""
        dst = arrays["dst"]
        with np.errstate(all="ignore"):
            if "index" not in arrays:
                total, *others = (as_float(arrays[name]).reshape(-1) for name in SOURCES if name in arrays)
                for other in others:
                    total = total + other
                return {"dst": total.reshape(dst.shape)}
            table = dst if attrs["indirect"] == "dst" else arrays["src0"]
            rows, kept = row_numbers(arrays["index"].reshape(-1), table.shape[0], attrs["oob_mode"])
            result = as_float(dst).reshape(dst.shape[0], -1).copy()
            added = as_float(arrays["src0"]).reshape(arrays["src0"].shape[0], -1)
            into, source = (rows, kept) if attrs["indirect"] == "dst" else (kept, rows)
            result[into] += added[source]
        return {"dst": result.reshape(dst.shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """The bytes of all sources, in descriptors of the shortest contiguous run."""
        sources = [ops[name] for name in SOURCES if name in ops]
        item = max(op.dtype.itemsize for op in (ops["dst"], *sources))
        moved = sources[0] if attrs["indirect"] != "src" else ops["dst"]
        elements = moved.partitions * moved.free * len(sources)
        run = min(op.contiguous_bytes // op.dtype.itemsize for op in (moved, *sources))
        size = min(run, moved.free) * item
        on_chip = [op.partitions for op in (ops["dst"], *sources) if op.memory is Memory.SBUF]
        return Work(
            "dma.compute",
            n=size,
            m=-(-elements * item // size),
            k=min(on_chip, default=128),
            itemsize=item,
            dtype="float32",
            nbytes=elements * item,
            flops=elements,
        )
