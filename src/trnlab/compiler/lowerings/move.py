# SPDX-License-Identifier: Apache-2.0
"""Moves: what no access pattern can express is copied, by DMA from HBM to HBM, or through the PE array to
transpose."""

from __future__ import annotations

from math import prod

from trnlab.compiler.analysis.strided import as_view
from trnlab.compiler.lowerings.context import Lowering
from trnlab.kernels.blocks import dma_load, dma_store
from trnlab.kernels.transpose import transpose2d
from trnlab.kernels.view import HbmView, full, rectangle, view_of
from trnlab.program import Builder
from trnlab.program.strided import row_major

ROWS_PER_DMA = 1024
FILL_COLS = 2048


def lower_move(low: Lowering) -> None:
    """Record a concatenation, a pad, or a view that has to become memory."""
    op = low.group.anchor
    out = full(low.ports[op.result], op.result.shape)
    if op.name == "concatenate":
        axis, at = op.attrs["dimension"], 0
        for value in op.operands:
            count = value.shape[axis]
            index = tuple(slice(at, at + count) if d == axis else slice(None) for d in range(len(out.shape)))
            copy(low, low.view(value), out[index])
            at += count
    elif op.name == "pad":
        _pad(low, out)
    else:
        seen = as_view(op, low.part.strided(op.operands[0]))
        assert seen is not None
        copy(low, view_of(low.ports[seen.base], seen), out)


def copy(low: Lowering, source: HbmView, target: HbmView) -> None:
    """target = source, of one shape. Floats of 16 and 32 bits are transposed on the PE array; the rest element by
    element."""
    if not source.shape:
        source, target = source.expand(0, 1), target.expand(0, 1)
    turns = source.dtype.is_float and source.dtype.itemsize > 1
    if turns and source.strides[-1] not in (0, 1) and source.shape[-1] > 1:
        inner = next((d for d, s in enumerate(source.strides) if s == 1 and source.shape[d] > 1), None)
        if inner is not None:
            _transpose(low, source, target, inner)
            return
    rows = len(source.shape) - 1
    total = prod(source.shape[:-1])
    for row in range(0, total, ROWS_PER_DMA):
        count = min(ROWS_PER_DMA, total - row)
        pieces = rectangle(source, rows, row, count, 0, source.shape[-1])
        for piece in pieces:
            for part in rectangle(target, rows, row + piece.partition, piece.partitions, 0, target.shape[-1]):
                start = part.partition
                src = rectangle(source, rows, row + piece.partition + start, part.partitions, 0, source.shape[-1])
                assert len(src) == 1
                dma_load(low.b, part.ap, src[0].ap)


def _transpose(low: Lowering, source: HbmView, target: HbmView, inner: int) -> None:
    """Swap the dimension that is contiguous in the source with the last, matrix by matrix."""
    last = len(source.shape) - 1
    others = [d for d in range(last) if d != inner]
    shape = tuple(source.shape[d] for d in others)
    strides = row_major(shape)
    for i in range(prod(shape)):
        where = {d: i // stride % count for d, stride, count in zip(others, strides, shape)}
        index = tuple(where.get(d, slice(None)) for d in range(last + 1))
        transpose2d(low.b, source[index].permute(1, 0), target[index])


def _pad(low: Lowering, out: HbmView) -> None:
    op = low.group.anchor
    number = low.part.splat(op.operands[1])
    assert number is not None, "checked before"
    fill(low.b, out, number)
    operand = op.operands[0]
    inside = op.attrs["interior_padding"]
    start = sum(n * stride for n, stride in zip(op.attrs["edge_padding_low"], out.strides))
    strides = tuple(stride * (n + 1) for stride, n in zip(out.strides, inside))
    copy(low, low.view(operand), out.like(start, operand.shape, strides))


def fill(b: Builder, out: HbmView, number: float) -> None:
    """Write one number everywhere in a view whose elements follow each other."""
    flat = out.size
    cols = min(FILL_COLS, -(-flat // 128))
    with b.scope():
        tile = b.tile((128, cols), out.dtype, name="fill")
        b.memset(dst=tile, value=number)
        for start in range(0, flat, 128 * cols):
            left = min(128 * cols, flat - start)
            rows, rest = divmod(left, cols)
            if rows:
                view = out.like(start, (rows, cols), (cols, 1))
                dma_store(b, view.ap(), tile[:rows])
            if rest:
                view = out.like(start + rows * cols, (1, rest), (rest, 1))
                dma_store(b, view.ap(), tile[:1, :rest])
