# SPDX-License-Identifier: Apache-2.0
"""Elements of rows by number, each row's in that row alone: rows lie in partitions, and GpSimdE gathers within them.

Indices are often the same in many rows, as relative positions are in all heads of a batch: they are loaded once.

Letters: R rows in partitions, V elements of a row, J indices of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import P, dma_load, dma_store
from trnlab.kernels.view import HbmView, merged_rows
from trnlab.numerics.dtypes import int32, uint32
from trnlab.program import AP
from trnlab.program.builder import Builder

MOST_ROW = 16384  # of a row, of which several lie in SBUF at once
INDICES = 1024  # that are gathered at once
FEWEST, MOST = 2, 4  # tiles of rows and of results


def take_along(b: Builder, x: HbmView, ids: HbmView, out: HbmView) -> None:
    """out[..., j] = x[..., ids[..., j]], an index out of range moved to the nearest. x: [..., V], rows of at most
    MOST_ROW bytes; ids: [..., J] int32; out: [..., J] in the format of x."""
    x, ids, out = merged_rows(x, ids, out)
    rows = max(range(len(ids.shape) - 1), key=lambda d: (min(ids.shape[d], P), ids.strides[d] != 0))
    (size,), width = x.shape[-1:], min(ids.shape[-1], INDICES)
    with b.scope():
        numbers = b.pool((P, width), uint32, bufs=2, name="index")
        raw = b.pool((P, width), int32, bufs=2, name="raw_index")
        left = b.sbuf_free // (x.dtype.itemsize * (size + width))
        table, taken = (
            b.pool((P, cols), x.dtype, bufs=max(FEWEST, min(left, MOST)), name=name)
            for name, cols in (("rows", size), ("taken", width))
        )
        for places, repeats in _blocks(ids, rows):
            for col in range(0, ids.shape[-1], width):
                cols = slice(col, min(col + width, ids.shape[-1]))
                index = _loaded(b, ids[(*places, cols)], raw.next(), numbers.next(), size)
                for place in repeats:
                    source, target = (view[place] for view in (x, out))
                    row, found = (pool.next()[: index.partitions] for pool in (table, taken))
                    dma_load(b, row, source.ap())
                    b.nc_n_gather(dst=found[:, : index.free], data=row, indices=index)
                    dma_store(b, target[:, cols].ap(), found[:, : index.free], Engine.SCALAR)


_Place = tuple[int | slice, ...]


def _blocks(ids: HbmView, rows: int) -> Iterator[tuple[_Place, list[_Place]]]:
    """Places of up to 128 rows of indices, and of all rows that they are the indices of. rows: the dimension that
    lies in partitions."""
    lead = range(len(ids.shape) - 1)
    own = [d for d in lead if d != rows and ids.strides[d]]
    shared = [d for d in lead if d != rows and not ids.strides[d]]
    parts = [slice(start, min(start + P, ids.shape[rows])) for start in range(0, ids.shape[rows], P)]
    for at in product(*(range(ids.shape[d]) for d in own)):
        for part in parts:
            found: list[_Place] = []
            for repeat in product(*(range(ids.shape[d]) for d in shared)):
                place: dict[int, int | slice] = {rows: part, **dict(zip(own, at)), **dict(zip(shared, repeat))}
                found.append(tuple(place[d] for d in lead))
            yield found[0], found


def _loaded(b: Builder, ids: HbmView, raw: AP, numbers: AP, size: int) -> AP:
    """Indices [R, J] on chip, those out of range moved to the nearest of `size`."""
    raw, numbers = (tile[: ids.shape[0], : ids.shape[1]] for tile in (raw, numbers))
    dma_load(b, raw, ids.ap())
    b.tensor_scalar(dst=numbers, data=raw, operand0=0.0, op0="max", operand1=float(size - 1), op1="min")
    return numbers
