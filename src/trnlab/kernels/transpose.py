# SPDX-License-Identifier: Apache-2.0
"""Materialised transposes through the PE array, for graphs that need one in HBM.

Letters: R rows and C columns of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from trnlab.isa.base import Engine
from trnlab.kernels.blocks import BANK, BANKS, BlockSource, P, ViewSource, Workspace, load_rows, store_rows
from trnlab.kernels.view import HbmView
from trnlab.program.access import AP
from trnlab.program.builder import Builder

_WIDTH = 512  # columns loaded at once


def transpose2d(b: Builder, src: HbmView | BlockSource, dst: HbmView) -> None:
    """Record dst[c, r] = src[r, c]; src [R, C], dst [C, R], in one format of 16 or 32 bits.

    As many blocks of 128 rows as a PSUM bank holds are transposed side by side, so that rows of 2 KiB are written.
    Uses the SBUF that is free in `b` and leaves it free.
    """
    source = ViewSource(src) if isinstance(src, HbmView) else src
    rows, cols = source.shape
    assert dst.shape == (cols, rows), (dst.shape, source.shape)
    dt = source.dtype
    height = min(rows, BANK * 4 // dt.itemsize)
    blocks = ceil(height / P)
    with b.scope():
        work = Workspace(b)
        out = work.pool("out", (P, height), dt, bufs=4)
        width = _fit(cols, blocks * dt.itemsize * 3, b.sbuf_free)
        raw = work.pool("raw", (P, blocks, width), dt, bufs=3)
        banks = [b.psum((P, height), dt, bank=i) for i in range(BANKS)]
        turn = 0
        for row in range(0, rows, height):
            tall = min(height, rows - row)
            for col in range(0, cols, width):
                tile, wide = raw.next(), min(width, cols - col)
                load_rows(b, source, tile[:, :, :wide], tall, row, col)
                for c in range(0, wide, P):
                    bank = banks[turn % BANKS][: min(P, wide - c), :tall]
                    turn += 1
                    _turn(b, bank, tile, c)
                    done = out.next()[: bank.partitions, :tall]
                    work.evacuate(done, bank)
                    store_rows(b, dst, done, col + c, row)


def _fit(cols: int, column_bytes: int, free: int) -> int:
    """Columns to load at once: all, or a multiple of 128 for which there is room."""
    most = max(free // column_bytes // P * P, P)
    return min(cols, _WIDTH, most)


def _turn(b: Builder, bank: AP, tile: AP, col: int) -> None:
    """Transpose columns [col, +128) of all blocks of a tile into a bank, side by side."""
    cols, rows = bank.partitions, bank.free
    for at in range(0, rows, P):
        count = min(P, rows - at)
        data = tile[:count, at // P, col : col + cols]
        b.nc_transpose(dst=bank[:, at : at + count], data=data, engine=Engine.TENSOR)


Step = Callable[[], object]
"""Records some instructions."""


def interleave(first: Sequence[Step], second: Sequence[Step]) -> None:
    """Record both, each in its order, spread evenly: the PE array multiplies while others copy what it transposed."""
    done = 0
    for i, step in enumerate(first):
        step()
        due = len(second) * (i + 1) // len(first)
        for other in second[done:due]:
            other()
        done = due
    for other in second[done:]:
        other()
