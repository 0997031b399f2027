# SPDX-License-Identifier: Apache-2.0
"""Transposition on the way of a transfer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trnlab.chips.spec import Chip
from trnlab.isa import register
from trnlab.isa.base import (
    DMA_MEMORIES,
    MOVABLE,
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
from trnlab.isa.dma.indices import check_options, row_numbers

AXES = ((1, 0), (2, 1, 0), (3, 1, 2, 0))
BLOCK, LANES = 16, 128  # rows that the hardware transposes at once; longest last dimension of a fast transpose


@register
class DmaTranspose(Instruction):
    """dst = src with its dimensions in the order of `axes`: (1, 0), (2, 1, 0) or (3, 1, 2, 0); bits move as they are.

    The first dimension is the partition (of an HBM tensor, the row). With `index`, rows are gathered first: number
    index[i % I, i // I] of the table src is row i of what is transposed. A row that does not exist is an error when
    the program runs, or left out with oob_mode skip.
    """

    name = "dma_transpose"
    opcode = 19
    engines = (Engine.SYNC, Engine.SCALAR, Engine.GPSIMD, Engine.VECTOR, Engine.TENSOR)
    operands = (
        OperandSpec("dst", "dst", DMA_MEMORIES, rw=True, shape=("", ""), dtypes=MOVABLE),
        OperandSpec("src", "src", DMA_MEMORIES, shape=("", ""), dtypes=MOVABLE),
        OperandSpec("index", "src", SBUF_ONLY, optional=True, shape=("", ""), dtypes=frozenset({"uint32"})),
    )
    attrs: ClassVar[Mapping[str, Any]] = {
        "axes": (1, 0),
        "dge_mode": "unknown",
        "oob_mode": "error",
        "priority": None,
    }
    same_dtype = ("dst", "src")
    is_dma = True
    cost_kinds = ("dma.transpose",)
    limits = (
        "src has as many dimensions as axes, dst those of the result; for (1, 0) free dimensions are flattened",
        "dge_mode hwdge (chips with hwdge): 2-byte formats, a last dimension of at most 128, blocks of 16 rows",
        "with index (chips with dma_transpose): gpsimd, dge_mode swdge, 2-byte formats, src in HBM",
        "index is [I, J], I a multiple of 16 (128 where J is not 1); it has the rows of the result, a multiple of 16",
        "oob_mode is error or skip; priority is 0..3 on chips with dma_priority",
    )
    source = "nki.isa.dma_transpose; trainium2_arch.rst:278-340 (rates); nki-dge.rst:145-149"
    example = """
        x, turned = nl.ones((128, 64), nl.bfloat16), nl.ndarray((64, 128), nl.bfloat16)
        nisa.dma_transpose(dst=turned, src=x)
    """

    def reads_destination(self, attrs: Mapping[str, Any]) -> bool:
        """Only where rows may be left out."""
        return bool(attrs["oob_mode"] == "skip")

    def check(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine, chip: Chip) -> None:
        """Shapes follow the permutation; the way of making descriptors can do it."""
        axes = attrs["axes"]
        if axes not in AXES:
            self.refuse(
                "a permutation that DMA does not do",
                limit=", ".join(map(str, AXES)),
                got=axes,
                chip=chip,
                remedy="reshape to one of these",
                code="TRN411",
            )
        src, dst = _shape(ops["src"], len(axes)), _shape(ops["dst"], len(axes))
        if "index" in ops and src and dst:
            src = (dst[-1], *src[1:])
        if src is None or dst is None or dst != tuple(src[axis] for axis in axes):
            self.refuse(
                "dst has not the shape of src transposed",
                limit=src and [src[axis] for axis in axes],
                got=dst,
                chip=chip,
                remedy="give both the dimensions that axes counts",
                code="TRN409",
            )
        check_options(self, attrs, engine, chip)
        if "index" in ops:
            self._check_gather(ops, src, engine, chip)
        elif attrs["dge_mode"] == "hwdge":
            self._check_hardware(ops, src, chip)

    def _check_hardware(self, ops: Mapping[str, Operand], shape: tuple[int, ...], chip: Chip) -> None:
        rows = shape[0] * (shape[-2] if len(shape) > 2 else 1)
        if ops["src"].dtype.itemsize != 2 or shape[-1] > LANES or rows % BLOCK or shape[0] > BLOCK:
            self.refuse(
                "hardware descriptors do not transpose this",
                limit=self.limits[1],
                got=[*shape, ops["src"].dtype.name],
                chip=chip,
                remedy="use dge_mode unknown, or other shapes",
                code="TRN406",
            )

    def _check_gather(self, ops: Mapping[str, Operand], shape: tuple[int, ...], engine: Engine, chip: Chip) -> None:
        if not chip.has("dma_transpose"):
            self.refuse(
                "this generation does not gather while it transposes",
                limit="dma_transpose",
                got="index",
                chip=chip,
                remedy="gather with dma_copy first",
                code="TRN414",
            )
        if engine is not Engine.GPSIMD or ops["src"].memory is not Memory.HBM:
            self.refuse(
                "only gpsimd makes the descriptors of a gather, from HBM",
                limit="gpsimd, src in HBM",
                got=f"{engine.name.lower()}, src in {ops['src'].memory.name}",
                chip=chip,
                remedy="issue it with engine=GPSIMD",
                code="TRN401",
            )
        index = ops["index"]
        fits = index.partitions % BLOCK == 0 and (index.free == 1 or index.partitions == LANES)
        enough = shape[0] % BLOCK == 0 and index.partitions * index.free >= shape[0]
        narrow = ops["src"].dtype.itemsize == 2 and shape[-1] <= LANES
        thin = len(shape) < 4 or 1 in shape[1:3]
        if not (fits and enough and narrow and thin):
            self.refuse(
                "a gather that DMA cannot transpose",
                limit=self.limits[3],
                chip=chip,
                got=f"index [{index.partitions}, {index.free}] for {list(shape)} of {ops['src'].dtype.name}",
                remedy="pad the index to a multiple of 16 rows",
                code="TRN416",
            )

    def meaning(self, arrays: Arrays, attrs: Mapping[str, Any]) -> dict[str, Array]:
        """The permutation of the elements. Raises IndexError for a row that does not exist."""
        rank = len(attrs["axes"])
        src, dst = (_ranked(arrays[name], rank) for name in ("src", "dst"))
        if "index" not in arrays:
            return {"dst": src.transpose(attrs["axes"]).reshape(arrays["dst"].shape)}
        index = arrays["index"].reshape(arrays["index"].shape[0], -1).T.reshape(-1)[: dst.shape[-1]]
        rows, kept = row_numbers(index, src.shape[0], attrs["oob_mode"])
        result = dst.copy()
        result[..., kept] = src[rows].transpose(attrs["axes"])
        return {"dst": result.reshape(arrays["dst"].shape)}

    def work(self, ops: Mapping[str, Operand], attrs: Mapping[str, Any], engine: Engine) -> Work:
        """Descriptors of a row of the source."""
        src, dst = ops["src"], ops["dst"]
        item, elements = src.dtype.itemsize, dst.partitions * dst.free
        size = min(src.contiguous_bytes, src.free * item)
        return Work(
            "dma.transpose",
            n=size,
            m=-(-elements * item // size),
            k=dst.partitions,
            itemsize=item,
            dtype=src.dtype.name,
            nbytes=elements * item,
        )


def _shape(op: Operand, rank: int) -> Any:
    """The dimensions of an operand as `axes` counts them, None where it has others."""
    if rank == 2:
        return (op.partitions, op.free)
    dims = tuple(count for _, count in op.dims)
    return (op.partitions, *dims) if len(dims) == rank - 1 else None


def _ranked(array: Array, rank: int) -> Array:
    """An operand with `rank` dimensions: leading free dimensions of one may be there or not."""
    free = array.shape[1:] if rank > 2 else (int(np.prod(array.shape[1:])),)
    return array.reshape(array.shape[0], *((1,) * rank + tuple(free))[-(rank - 1) :])
