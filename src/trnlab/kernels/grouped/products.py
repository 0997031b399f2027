# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows, each group with a matrix of its own, as mixtures of experts have them.

How many rows a group has is known on chip alone. So the work is a fixed number of *items* of B rows: item t has rows
of group `groups[t]`, which a table names one by one. Rows come and go by gathers and scatters; a group's matrix comes
by a transfer whose first row is read from SBUF. However rows are spread, there are never more than M / B + G items,
and a group's matrix is loaded once for each of its items.

What lies behind an item's rows is computed and left out, or comes as zeros where rows are summed. No product of one
group's rows with another's matrix is ever stored or added: infinities and NaN stay in their groups.

Letters: M rows in all, G groups, K summed, N columns; H partitions of an item's blocks, 128 or B; J blocks of all
items.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from trnlab.kernels.blocks import BANK, P, dma_load
from trnlab.kernels.grouped.items import GroupItems, GroupMatrixSource, PickedRowsSource, addressable
from trnlab.kernels.grouped.sinks import GroupSumsSink, ScatteredSink
from trnlab.kernels.matmul import BatchedProduct, batch_matmul
from trnlab.kernels.view import HbmView
from trnlab.numerics.dtypes import float32, int16, int32
from trnlab.program import AP, Builder

SUMS = 64 * 1024  # bytes of a partition for sums over items


class RowTables(NamedTuple):
    """Which rows the items of `grouped_dot` have, in int32."""

    read: HbmView  # [H, J]: rows of the operand
    write: HbmView  # [H, J]: rows of the result; M, which is none, for what is left out
    keep: HbmView  # [H, J]: all bits set, or none where a row of no group is to be zero
    groups: HbmView  # [T]


class TermTables(NamedTuple):
    """Which rows the items of `grouped_outer` have. Every group has an item, and its items follow each other."""

    read: HbmView  # int32 [H, J]; M, which is none, for what is no row of the group
    groups: HbmView  # int32 [T]
    goes_on: HbmView  # int32 [T]: all bits set, or none where an item is the first of its group


def grouped_dot(b: Builder, x: HbmView, w: HbmView, out: HbmView, tables: RowTables) -> None:
    """out[m] = x[m] @ w[group of m]. x: [M, K]; w: [G, K, N], `addressable` as it is or with K and N exchanged; out:
    [M, N], row by row."""
    k_rows = addressable(w)
    with b.scope():
        items = GroupItems(b, tables.groups, w if k_rows else w.permute(0, 2, 1))
        read, write, keep = (_on_chip(b, table) for table in (tables.read, tables.write, tables.keep))
        if out.dtype.itemsize == 2 and out.shape[1] % 2:  # which no words are made of
            halves = b.tile((keep.partitions, keep.free), int16, name="keep")
            b.tensor_copy(dst=halves, src=keep)
            keep = halves
        each = read.free // items.count
        products = [
            BatchedProduct(
                PickedRowsSource(x, read[:, t * each : (t + 1) * each]),
                GroupMatrixSource(items, t),
                ScatteredSink(out, *(table[:, t * each : (t + 1) * each] for table in (write, keep))),
            )
            for t in range(items.count)
        ]
        batch_matmul(b, products, lhs_k_rows=False, rhs_k_rows=k_rows)


def grouped_outer(b: Builder, x: HbmView, y: HbmView, out: HbmView, tables: TermTables) -> None:
    """out[g] = x^T y of the rows of group g, zero for one that has none. x: [M, K]; y: [M, N]; out: [G, K, N], of
    which `addressable` is true. Sums are float32 until a group's last item."""
    (k, n), groups = (x.shape[1], y.shape[1]), tables.groups
    height, width = slab(k, n)
    with b.scope():
        items = GroupItems(b, groups, out)
        read, goes_on = _on_chip(b, tables.read), _repeated(b, tables.goes_on)
        each = read.free // items.count
        sums = b.tile((P, ceil(height / P), width), float32, name="sums")
        b.memset(dst=sums, value=0.0)
        products = []
        for row in range(0, k, height):
            for col in range(0, n, width):
                rows, cols = slice(row, min(row + height, k)), slice(col, min(col + width, n))
                for t in range(items.count):
                    index = read[:, t * each : (t + 1) * each]
                    left, right = (PickedRowsSource(v, index, zeros=True) for v in (x[:, rows], y[:, cols]))
                    sink = GroupSumsSink(b, items, t, sums, goes_on[:, t : t + 1], row, col)
                    products.append(BatchedProduct(left, right, sink))
        batch_matmul(b, products, lhs_k_rows=True, rhs_k_rows=True)


def slab(k: int, n: int) -> tuple[int, int]:
    """Rows and columns of a [K, N] matrix whose sums stay on chip while all items pass: of those that fit the ones
    for which least is loaded, x once for each slab of columns and y for each of rows."""
    found = []
    for high in {min(k, 128 * 2**i) for i in range(8)}:
        most = SUMS // 4 // ceil(high / P) // BANK * BANK
        if most:
            wide = min(n, ceil(ceil(n / ceil(n / most)) / BANK) * BANK)
            found.append((k * ceil(n / wide) + n * ceil(k / high), high, wide))
    _, high, wide = min(found)
    return high, wide


def _on_chip(b: Builder, table: HbmView) -> AP:
    tile = b.tile(table.shape, int32, name="table")
    dma_load(b, tile, table.ap())
    return tile


def _repeated(b: Builder, numbers: HbmView) -> AP:
    """Numbers [T] in all partitions."""
    tile = b.tile((P, *numbers.shape), int32, name="numbers")
    dma_load(b, tile, numbers.expand(0, P).ap())
    return tile
