# SPDX-License-Identifier: Apache-2.0
"""Moves: what no access pattern can express is copied, by DMA from HBM to HBM, or through the PE array to
transpose."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from trnlab.compiler.analysis.strided import as_view
from trnlab.compiler.lowerings.context import Lowering
from trnlab.kernels.blocks import dma_load, dma_store
from trnlab.kernels.moves.turned_slabs import turned_slabs
from trnlab.kernels.row_permute import row_permutations, transposed_ns
from trnlab.kernels.transpose import transpose2d
from trnlab.kernels.view import HbmView, full, merged, view_of
from trnlab.program import AP, Builder, hbm_view
from trnlab.program.access import MAX_FREE_DIMS
from trnlab.program.strided import row_major

MOST_ROWS, MOST_BYTES = 4096, 1 << 20  # of a transfer: runs of elements that follow each other, and bytes of all
FILL_COLS = 2048


def lower_move(low: Lowering) -> None:
    """Record a concatenation, a pad, or a view that has to become memory."""
    op = low.group.anchor
    out = full(low.ports[op.result], op.result.shape)
    if op.name == "concatenate":
        axis, at = op.attrs["dimension"], 0
        for value in op.operands:
            count = value.shape[axis]
            part = out[tuple(slice(at, at + count) if d == axis else slice(None) for d in range(len(out.shape)))]
            number = low.part.splat(value)
            if number is None:
                copy(low, low.view(value), part)
            else:
                fill(low.b, part, number)
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
    source, target = merged(source, target)
    turns = source.dtype.is_float and source.dtype.itemsize > 1 and source.strides[-1] != 1
    inner = next((d for d, s in enumerate(source.strides) if s == 1), None) if turns else None
    if inner is not None and _turned(low.b, source, target, inner):
        return
    if inner is not None and source.strides[-1]:
        _transpose(low, source, target, inner)
        return
    for first, counts in _slabs(source, target, int(low.b.chip.dma.engines.value)):
        dma_load(low.b, *(_slab(view, first, counts) for view in (target, source)))


def _turned(b: Builder, source: HbmView, target: HbmView, inner: int) -> bool:
    """Copy within partitions, or pixels in another order on the way through the PE array, where that is sooner than
    matrix by matrix; whether it is."""
    rows, slabs = row_permutations(b, source, target, inner), turned_slabs(b, source, target, inner)
    if slabs is not None and slabs.nanoseconds < transposed_ns(source, inner, rows):
        slabs.record(b)
        return True
    for each in rows:
        each.record(b)
    return bool(rows)


def _slabs(source: HbmView, target: HbmView, engines: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What single transfers move: the index of the first element, and the counts of the last dimensions from there
    on. All of the innermost dimensions that a transfer has room for, and some of the dimension before them, as many
    for each of the DMA engines where they are more than these."""
    shape, last = source.shape, len(source.shape) - 1
    run = shape[last] if source.strides[last] == target.strides[last] == 1 else 1  # elements of a descriptor
    for axis in range(max(last - MAX_FREE_DIMS, 0), last + 1):
        elements = prod(shape[axis + 1 :])
        limits = MOST_ROWS * run // elements, MOST_BYTES // (elements * source.dtype.itemsize)
        count = min(limits if axis < last or run == 1 else limits[1:])
        if count:
            break
    count -= count % engines if count > engines else 0
    for index in product(*map(range, shape[:axis])):
        for start in range(0, shape[axis], count):
            yield (*index, start), (min(count, shape[axis] - start), *shape[axis + 1 :])


def _slab(view: HbmView, first: tuple[int, ...], counts: tuple[int, ...]) -> AP:
    """Part of a view, as many elements of its last dimensions as said from an index on."""
    offset = view.offset + sum(i * stride for i, stride in zip(first, view.strides))
    return hbm_view(view.base, offset, tuple(zip(view.strides[-len(counts) :], counts)))


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
    """Write one number everywhere in a view."""
    (out,) = merged(out)
    if out.strides[-1] != 1:
        out = out.expand(len(out.shape), 1)
    cols = min(FILL_COLS, out.shape[-1] if len(out.shape) > 1 else -(-out.size // 128))
    with b.scope():
        tile = b.tile((128, cols), out.dtype, name="fill")
        b.memset(dst=tile, value=number)
        for rows in _rows(out, cols):
            dma_store(b, rows.ap(), tile[: rows.shape[0], : rows.shape[1]])


def _rows(out: HbmView, cols: int) -> Iterator[HbmView]:
    """A view as parts of up to 128 rows of so many columns, the last of them smaller."""
    if len(out.shape) == 1:
        rows, rest = divmod(out.size, cols)
        if rest:
            yield out.like(out.offset + out.size - rest, (1, rest), (rest, 1))
        out = out.like(out.offset, (rows, cols), (cols, 1))
    *outer, count, run = out.shape
    for index in product(*map(range, outer)):
        first = out.offset + sum(i * stride for i, stride in zip(index, out.strides))
        for row, col in product(range(0, count, 128), range(0, run, cols)):
            shape = min(128, count - row), min(cols, run - col)
            yield out.like(first + row * out.strides[-2] + col, shape, (out.strides[-2], 1))
