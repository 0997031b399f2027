# SPDX-License-Identifier: Apache-2.0
"""Which part of a result is defined: what a mask left out of its first and only write is not."""

from __future__ import annotations

from trnlab.lang.recorder import current
from trnlab.lang.storage import Storage
from trnlab.lang.tensor import Tensor
from trnlab.program.strided import row_major

Box = dict[int, tuple[int, int]]  # axis -> first and one-past-last index; axes that are whole are left out


def boxes() -> dict[Storage, Box]:
    """The box of each storage that is not wholly defined, or that nothing has written to."""
    made: dict[Storage, Box] = current().once("what masks left", dict)
    return made


def record(out: Tensor, box: Box) -> None:
    """`out` has been written in this box. Only a first write to a whole tile leaves something undefined."""
    known = boxes()
    before = known.pop(out.storage, None)
    if not box:
        return
    fresh = before in (_FRESH, _NOTHING)
    partial = {a: r for a, r in box.items() if r != (0, out.shape[a])}
    if fresh and partial and _is_whole(out):
        known[out.storage] = partial


def record_sum(out: Tensor, box: Box) -> None:
    """A sum in this box has been added to `out`: what was not defined of either is not defined now."""
    known = boxes()
    if not _is_whole(out):
        record(out, box)
        return
    old = known.pop(out.storage, _FRESH)
    both = dict(box) if old in (_FRESH, _NOTHING) else joined(old, box)
    partial = {a: r for a, r in both.items() if r != (0, out.shape[a])}
    if partial:
        known[out.storage] = partial


def joined(a: Box, b: Box) -> Box:
    """What lies in both boxes."""
    out = dict(a)
    for axis, (low, high) in b.items():
        first, last = out.get(axis, (low, high))
        out[axis] = (max(first, low), min(last, high))
    return out


_FRESH: Box = {-1: (0, 0)}
_NOTHING: Box = {0: (0, 0)}


def fresh(tile: Tensor) -> Tensor:
    """A tile that nothing has written to yet."""
    boxes()[tile.storage] = _FRESH
    return tile


def unwritten(tile: Tensor) -> Tensor:
    """A tile for the result of an operation: nothing of it is defined, unless the operation records what it wrote."""
    boxes()[tile.storage] = _NOTHING
    return tile


def defined(view: Tensor) -> Box:
    """The box of a view that is defined; {} when that is all of it, or not known."""
    if getattr(view, "empty", False):
        return _NOTHING
    box = boxes().get(view.storage)
    if not box or box is _FRESH:
        return {}
    dense = row_major(view.storage.shape)
    if view.strides != dense or len(view.shape) != len(dense):
        return {}
    out, rest = {}, view.offset
    for axis, step in enumerate(dense):
        start, rest = divmod(rest, step)
        if axis in box:
            low, high = (min(max(edge - start, 0), view.shape[axis]) for edge in box[axis])
            if (low, high) != (0, view.shape[axis]):
                out[axis] = (low, high)
    return out


def _is_whole(view: Tensor) -> bool:
    return view.shape == view.storage.shape and view.strides == row_major(view.shape) and view.offset == 0
