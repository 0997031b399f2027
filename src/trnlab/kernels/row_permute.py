# SPDX-License-Identifier: Apache-2.0
"""Transposes of many small matrices, as heads and windows are: each lies in one partition, and an engine reads it
there in another order; or each of its elements several times, as images are resized.

The PE array turns 128 by 128 elements at once, and takes as long for a matrix of 12 by 64. Where matrices are few and
long, pieces of them lie in partitions instead.

Letters: A the elements that follow each other in the source, B those that do in the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from trnlab.kernels.blocks import BANK, P, Workspace, dma_load, dma_store
from trnlab.kernels.view import HbmView
from trnlab.program.builder import Builder

FEWEST, MOST = 2, 3  # tiles of each kind
LONGEST = 16384  # elements of a partition
NARROW = 32  # from which on matrices that fill the PE array are turned there
# What follows only chooses between two ways. Nanoseconds: of an element in each partition, copied on two engines that
# take turns; of a transfer or a copy besides, as far as the next ones do not hide it; of a transfer of `transpose2d`.
COPIED, STARTED, TURNED = 0.55, 450.0, 800.0
RUN, RATE = 128, 400.0  # bytes that a shorter run takes as long as; bytes in a nanosecond of all DMA engines
LANE_ROWS = 8  # partitions that one of the 16 serves


@dataclass(frozen=True)
class RowPermutation:
    """Two views of as many elements, their dimensions in one order: what is repeated one after the other, rows, which
    lie in partitions, and B and A, or what of them is in a row."""

    source: HbmView
    target: HbmView

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.source.shape[-3]

    @property
    def elements(self) -> int:
        """How many a row has."""
        return self.source.shape[-2] * self.source.shape[-1]

    @property
    def repeats(self) -> bool:
        """Whether each element of the source comes B times, one after the other."""
        return self.source.strides[-2] == 0

    @property
    def nanoseconds(self) -> float:
        """Estimated."""
        times = prod(self.source.shape[:-3]) * ceil(self.rows / P)
        *lead, high, low = range(len(self.source.shape))
        moved = _bytes(self._loaded) + _bytes(self.target.permute(*lead, low, high))
        busy = min(ceil(self.rows / LANE_ROWS) * LANE_ROWS, P) / P  # of the DMA engines
        return max(times * self.elements * COPIED, moved / RATE / busy) + times * STARTED

    @property
    def _loaded(self) -> HbmView:
        """Each element of the source once."""
        return (
            self.source[(*(slice(None) for _ in self.source.shape[:-2]), slice(0, 1))]
            if self.repeats
            else self.source
        )

    def record(self, b: Builder) -> None:
        """Row by row: loaded as it lies in the source, copied in the order of the target, stored."""
        count, (high, low) = self.elements, self.source.shape[-2:]
        with b.scope():
            work, dtype = Workspace(b), self.source.dtype
            bufs = MOST if 2 * MOST * count * dtype.itemsize <= b.sbuf_free else FEWEST
            raw, turned = (work.pool(name, (P, count), dtype, bufs) for name in ("raw", "turned"))
            for index in product(*map(range, self.source.shape[:-3])):
                for row in range(0, self.rows, P):
                    part = (*index, slice(row, min(row + P, self.rows)))
                    source, target = self._loaded[part], self.target[part]
                    came, made = (pool.next()[: source.shape[0]] for pool in (raw, turned))
                    made = made.split(0, low, high)
                    if self.repeats:
                        dma_load(b, came[:, :low], source.ap())
                        work.evacuate(made, came[:, :low].repeat(1, high))
                    else:
                        dma_load(b, came.split(0, high, low), source.ap())
                        work.evacuate(made, came.split(0, high, low).permute(1, 0))
                    dma_store(b, target.permute(0, 2, 1).ap(), made)


def row_permutations(b: Builder, source: HbmView, target: HbmView, inner: int) -> list[RowPermutation]:
    """How to copy a view to one of the same shape, whose last dimension follows each other there as `inner` does in
    the source; empty where turning on the PE array is sooner, or there is no room."""
    last, shape = len(source.shape) - 1, source.shape
    if source.strides[last] and min(shape[inner], shape[last]) >= NARROW and shape[inner] * shape[last] > P * P:
        return []
    longest = min(b.sbuf_free // (2 * FEWEST * source.dtype.itemsize), LONGEST)
    others = [d for d in range(last) if d != inner]
    plans = [_pieces(source, target, inner, others, longest)]
    if others and 8 * shape[inner] <= longest:
        rows = max(others, key=lambda d: (min(shape[d], P), shape[d]))
        order = (*(d for d in others if d != rows), rows, last, inner)
        step = ceil(shape[last] / ceil(shape[inner] * shape[last] / longest))  # of B, of which a row has as much
        whole = [slice(None)] * last
        parts = [(*whole, slice(at, min(at + step, shape[last]))) for at in range(0, shape[last], step)]
        plans.append([RowPermutation(*(view[part].permute(*order) for view in (source, target))) for part in parts])
    best = min((plan for plan in plans if plan), key=_nanoseconds, default=[])
    return best if best and _nanoseconds(best) < transposed_ns(source, inner) else []


def transposed_ns(source: HbmView, inner: int, rows: Sequence[RowPermutation] = ()) -> float:
    """Estimated nanoseconds of a copy: by `rows`, if there are any, else matrix by matrix on the PE array."""
    if rows:
        return _nanoseconds(rows)
    last = len(source.shape) - 1
    if not source.strides[last]:
        return source.size * RUN / RATE  # element by element
    matrices = prod(n for d, n in enumerate(source.shape) if d not in (inner, last))
    return matrices * _transfers(source.shape[last], source.shape[inner], source) * TURNED


def _bytes(view: HbmView) -> int:
    """What a transfer of a view takes as long as, in runs of elements that follow each other in each row."""
    run = prod(view.shape[-2:]) if view.strides[-2] == view.shape[-1] else view.shape[-1]
    return view.size // run * max(run * view.dtype.itemsize, RUN)


def _nanoseconds(plan: Sequence[RowPermutation]) -> float:
    return sum(each.nanoseconds for each in plan)


def _pieces(source: HbmView, target: HbmView, inner: int, others: list[int], longest: int) -> list[RowPermutation]:
    """The longer of A and B cut into pieces, each of which lies with all of the other in a partition."""
    last = len(source.shape) - 1
    cut, whole = (inner, last) if source.shape[inner] >= source.shape[last] else (last, inner)
    length = source.shape[cut]
    piece = min(max(ceil(length / P), 1), longest // source.shape[whole])
    if piece == 0 or min(length, piece) < 8:
        return []
    found = []
    for start, stop, each in ((0, length // piece * piece, piece), (length // piece * piece, length, length % piece)):
        if stop == start:
            continue
        index = tuple(slice(start, stop) if d == cut else slice(None) for d in range(last + 1))
        views = [view[index].split(cut, (stop - start) // each, each) for view in (source, target)]
        place = {d: d + (d > cut) for d in range(last + 1)}
        ends = (cut + 1 if cut == last else place[last], cut + 1 if cut == inner else place[inner])
        order = (*(place[d] for d in others), cut, *ends)
        found.append(RowPermutation(*(view.permute(*order) for view in views)))
    return found


def _transfers(rows: int, cols: int, source: HbmView) -> int:
    """Transfers of `transpose2d` for one matrix [rows, cols]."""
    height = min(rows, BANK * 4 // source.dtype.itemsize)
    return ceil(rows / height) * (ceil(cols / 512) + ceil(cols / P))
