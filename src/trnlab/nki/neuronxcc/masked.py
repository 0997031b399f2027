# SPDX-License-Identifier: Apache-2.0
"""What a mask leaves of the operands of an operation.

An operation with a mask computes the part that the mask leaves; the rest of its result stays undefined. What is
undefined is remembered for results that nobody has written to since, so that the next operation does not compute
with it, as kernels do that load an edge under a mask and name the mask again only where they store.
"""

from __future__ import annotations

from typing import Any

from trnlab.lang.recorder import current
from trnlab.lang.strides import row_major
from trnlab.lang.tensor import Storage, Tensor
from trnlab.nki.neuronxcc.affine import Mask
from trnlab.nki.neuronxcc.zeros import settle

Box = dict[int, tuple[int, int]]  # axis -> first and one-past-last index; axes that are whole are left out


def trimmed(mask: Any, out: Tensor, *inputs: Any) -> list[Any] | None:
    """[out, *inputs], tensors cut to what the mask and the undefined parts of the inputs leave; None for nothing.

    Inputs have the shape of `out`, or one element in some dimensions; what is no tensor passes unchanged.
    """
    box = boxed(mask, out.shape)
    for tensor in inputs:
        if isinstance(tensor, Tensor):
            settle(tensor)
            box = _both(box, defined(tensor)) if tensor.ndim == out.ndim else box
    parts = [cut(t, box) if isinstance(t, Tensor) else t for t in (out, *inputs)]
    if any(low >= high for low, high in box.values()):
        return None
    record(out, box)
    return parts


def boxed(mask: Any, shape: tuple[int, ...]) -> Box:
    """The box that a mask leaves of a tensor of this shape."""
    if mask is None or mask is True:
        return {}
    if isinstance(mask, Mask):
        found = mask.ranges(shape)
        return {a: r for a, r in found.items() if r[0] >= r[1] or (0 <= a < len(shape) and shape[a] != 1)}
    return {} if mask else {0: (0, 0)}


def cut(view: Tensor, box: Box) -> Tensor:
    """The part of a view in a box; dimensions of one element stay whole."""
    for axis, (low, high) in box.items():
        if axis < view.ndim and view.shape[axis] != 1:
            view = view.narrowed(axis, low, min(high, view.shape[axis])) if low < high else view  # type: ignore[attr-defined]
    return view


def _both(a: Box, b: Box) -> Box:
    out = dict(a)
    for axis, (low, high) in b.items():
        first, last = out.get(axis, (low, high))
        out[axis] = (max(first, low), min(last, high))
    return out


# -- which part of a result is defined ----------------------------------------------------------------------------
def _boxes() -> dict[Storage, Box]:
    known: dict[Storage, Box] = current().once("what masks left", dict)
    return known


def record(out: Tensor, box: Box) -> None:
    """`out` has been written in this box. Only a first write to a whole tile leaves something undefined."""
    boxes = _boxes()
    fresh = boxes.pop(out.storage, None) == _FRESH
    partial = {a: r for a, r in box.items() if r != (0, out.shape[a])}
    if fresh and partial and _is_whole(out):
        boxes[out.storage] = partial


_FRESH: Box = {-1: (0, 0)}


def fresh(tile: Tensor) -> Tensor:
    """A tile that nothing has written to yet."""
    _boxes()[tile.storage] = _FRESH
    return tile


def defined(view: Tensor) -> Box:
    """The box of a view that is defined; {} when that is all of it, or not known."""
    box = _boxes().get(view.storage)
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
