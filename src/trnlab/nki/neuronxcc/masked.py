# SPDX-License-Identifier: Apache-2.0
"""What a mask leaves of the operands of an operation.

An operation with a mask computes the part that the mask leaves; the rest of its result stays undefined. What is
undefined is remembered for results that nobody has written to since, so that the next operation does not compute
with it, as kernels do that load an edge under a mask and name the mask again only where they store.
"""

from __future__ import annotations

from typing import Any

from trnlab.lang.tensor import Tensor
from trnlab.nki.neuronxcc.affine import Mask
from trnlab.nki.neuronxcc.defined import Box, boxes, defined, joined, record
from trnlab.nki.neuronxcc.zeros import settle


def trimmed(mask: Any, out: Tensor, *inputs: Any) -> list[Any] | None:
    """[out, *inputs], tensors cut to what the mask and the undefined parts of the inputs leave; None for nothing.

    Inputs have the shape of `out`, or one element in some dimensions; what is no tensor passes unchanged.
    """
    box, partial = boxed(mask, out.shape), boxes()
    for tensor in inputs:
        if isinstance(tensor, Tensor):
            settle(tensor)
            if tensor.storage in partial or getattr(tensor, "empty", False):
                known = defined(tensor)
                box = joined(box, known) if known and tensor.ndim == out.ndim else box
    if not box:
        partial.pop(out.storage, None)  # as `record` does of all of it
        return [out, *inputs]
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


def rows_of(box: Box) -> Box:
    """What a box says of the partitions."""
    return {0: box[0]} if 0 in box else {}
