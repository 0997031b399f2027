# SPDX-License-Identifier: Apache-2.0
"""Transfers of tensors, the same for both dialects.

They are cut to what a descriptor can say. Rows that an index names are gathered or scattered, with descriptors that
GpSimd makes; a start address that is known only at run time is found out by the recorder, see `lang.offsets`.

Sources: dma_copy, dma_transpose and dma_compute of nki.isa; deep-dives/nki-dge.rst and nki-aps.rst.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnlab.isa.base import Engine
from trnlab.lang.dynamic_index import Dynamic, Indirect
from trnlab.lang.offsets import located
from trnlab.lang.recorder import current
from trnlab.lang.storage import refuse
from trnlab.lang.tensor import Tensor
from trnlab.program.access import MAX_FREE_DIMS, free_dims

MAX_SOURCES = 16


def dma_copy(dst: Tensor, src: Tensor, *, engine: Engine | None = None, **options: Any) -> None:
    """Move src to dst, element by element in row-major order. options: oob_mode, dge_mode and priority.

    An indirect source is gathered, an indirect destination scattered: its row p is the row that the index names.
    Raises ConstraintError for sizes that differ, and what `Recorder.emit` raises.
    """
    if src.size != dst.size:
        refuse(
            "a transfer moves as many elements as it writes",
            limit=f"dst {list(dst.shape)}",
            got=f"src {list(src.shape)}",
            remedy="slice both sides to the same size",
        )
    if src.indirect_rows is not None or dst.indirect_rows is not None:
        _rows("dma_copy", engine, {"dst": dst, "src": src}, **options)
        return
    if not any(isinstance(t.indirection, Dynamic) for t in (dst, src)):
        options.pop("oob_mode", None)  # nothing can be out of bounds
    for one, other in transfers(dst, src):
        current().emit("dma_copy", dst=one, src=other, engine=engine, **options)


def _rows(instruction: str, engine: Engine | None, sides: dict[str, Tensor], **options: Any) -> None:
    """A transfer of which one side is rows of a table."""
    picked = [(name, t.indirect_rows) for name, t in sides.items() if t.indirect_rows is not None]
    if len(picked) > 1:
        refuse(
            "a transfer picks rows on one side",
            limit="an indirect dst or src",
            got="both",
            remedy="gather into a tile, then scatter from it",
            code="TRN411",
        )
    if engine not in (None, Engine.GPSIMD):
        refuse(
            "rows chosen at run time need descriptors that GpSimd makes",
            limit="engine left out, or gpsimd",
            got=engine,
            remedy="leave engine out, and dge_mode unknown or swdge",
            code="TRN401",
        )
    name, rows = picked[0]
    assert rows is not None
    side = {} if instruction == "dma_transpose" else {"indirect": name.rstrip("0")}
    arguments: dict[str, Any] = {**sides, **side, **options}
    current().emit(instruction, engine=Engine.GPSIMD, index=rows.index, **arguments)


def transfers(dst: Tensor, src: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Pairs of access patterns, each small enough for one transfer, that together move src to dst."""
    pairs = [(dst, src)]
    while any(too_deep(t) for pair in pairs for t in pair):
        pairs = [half for pair in pairs for half in _halves(*pair)]
    return pairs


def too_deep(tensor: Tensor) -> bool:
    """Whether an access pattern has too few dimensions for it."""
    return len(tensor.shape) > MAX_FREE_DIMS + 1 and len(free_dims(tensor.strides, tensor.shape)) > MAX_FREE_DIMS


def _halves(dst: Tensor, src: Tensor) -> list[tuple[Tensor, Tensor]]:
    """One transfer per index of the first dimension that both have in common."""
    axis = next((i for i, (a, b) in enumerate(zip(dst.shape, src.shape)) if a == b and a > 1 and i), None)
    axis = 0 if axis is None and dst.shape[0] == src.shape[0] else axis
    if axis is None:
        refuse(
            "a transfer with more dimensions than trnlab takes apart",
            limit=f"{MAX_FREE_DIMS} free dimensions",
            got=f"{list(dst.shape)} from {list(src.shape)}",
            remedy="copy one outer index at a time",
            code="TRN407",
        )
    return [(dst.slice(axis, i, i + 1), src.slice(axis, i, i + 1)) for i in range(dst.shape[axis])]


def dma_transpose(
    dst: Tensor, src: Tensor, axes: tuple[int, ...], *, engine: Engine | None = None, **options: Any
) -> None:
    """dst = src with its dimensions in the order of `axes`; an indirect source is gathered first."""
    if len(axes) != src.ndim or dst.ndim != src.ndim:
        refuse(
            "a transpose keeps the number of dimensions",
            limit=f"{len(axes)} dimensions as in axes={axes}",
            got=f"dst {list(dst.shape)} from src {list(src.shape)}",
            remedy="reshape src and dst",
        )
    if src.indirect_rows is not None:
        index = src.indirect_rows.index
        source = src.access(keep_dims=True)
        current().emit(
            "dma_transpose",
            engine=Engine.GPSIMD,
            dst=dst.access(keep_dims=True),
            src=source,
            index=index.access(),
            axes=axes,
            **options,
        )
        return
    skips = options.pop("oob_mode", None) == "skip"
    sides = {}
    for name, tensor in (("dst", dst), ("src", src)):
        start = tensor.indirection
        at = tensor
        if isinstance(start, Dynamic):
            found = located(current(), tensor, start, engine or Engine.SYNC, skips)
            if found is None:
                return
            at = found
        sides[name] = at.access(keep_dims=True)
    current().emit("dma_transpose", engine=engine, **sides, axes=axes, **options)


def dma_compute(dst: Tensor, srcs: Sequence[Tensor], reduce_op: str, **options: Any) -> None:
    """dst = the sum of the sources, added by the DMA engines. options: scales, unique_indices and oob_mode.

    With rows that an index names, one of two sources is dst itself: the other is added to it.
    """
    if not 1 <= len(srcs) <= MAX_SOURCES:
        refuse(
            "dma_compute adds a few tensors",
            limit=f"1..{MAX_SOURCES} sources",
            got=len(srcs),
            remedy="split the sum",
            code="TRN411",
        )
    if all(t.indirect_rows is None for t in (dst, *srcs)):
        options.pop("oob_mode", None)
        options |= {f"src{i}": src for i, src in enumerate(srcs)}
        current().emit("dma_compute", dst=dst, reduce_op=reduce_op, **options)
        return
    others = [src for src in srcs if not _same(src, dst)]
    if len(srcs) != 2 or len(others) != 1:
        refuse(
            "rows chosen at run time are added to what is there",
            limit="two sources, one of which is dst",
            got=f"{len(srcs)} sources, {len(srcs) - len(others)} of which dst",
            remedy="pass srcs=[data, dst]",
            code="TRN411",
        )
    if options.get("scales") is not None:
        options["scales"] = options["scales"][:1]
    _rows("dma_compute", None, {"dst": dst, "src0": others[0]}, reduce_op=reduce_op, **options)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two views are of the same elements, chosen by the same index."""
    if (one.storage, one.offset, one.shape) != (other.storage, other.offset, other.shape):
        return False
    a, b = one.indirection, other.indirection
    if isinstance(a, Indirect) and isinstance(b, Indirect):
        return a.step == b.step and _same(a.index, b.index)
    return a is b and one.strides == other.strides
