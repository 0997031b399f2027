# SPDX-License-Identifier: Apache-2.0
"""tensor[key] = value: a copy, a transfer or a fill, whichever the two places ask for.

A tile becomes a copy on chip or a transfer to HBM, a tensor in HBM a transfer, a number a fill. What the last
instruction wrote for this alone it writes to its target at once.

Sources: the examples of nki/migration/index.rst in aws-neuron/aws-neuron-sdk (tile[...] = nl.load(...), "to the
migrated form"); NkiTensor.__setitem__ in nki/api/nki/language/__init__.py.
"""

from __future__ import annotations

import sys
from numbers import Real
from typing import Any

import numpy as np

from trnlab import isa
from trnlab.isa.base import Memory
from trnlab.isa.rules import allowed_starts
from trnlab.lang import compose
from trnlab.lang import instructions as ins
from trnlab.lang.recorder import current
from trnlab.lang.storage import refuse
from trnlab.lang.tensor import Tensor
from trnlab.lang.transfers import dma_copy


class _Probe:
    """How many references a value has inside of __setitem__ when nobody else holds it."""

    setting = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        _Probe.setting = sys.getrefcount(value)


def _calibrate() -> int:
    probe = _Probe()
    probe[0] = object()
    return _Probe.setting


_SETTING = _calibrate()


def alone_in_setting(references: int, value: Any) -> bool:
    """Whether only `target[...] = value` holds the value, which has so many references inside of __setitem__."""
    return references <= _SETTING + (isinstance(value, Tensor) and current().wrote(value))


def assign(target: Tensor, value: Any, references: int) -> None:
    """target = value, to which there are so many references inside of __setitem__.

    Raises ConstraintError for what is no tensor and no number.
    """
    if isinstance(value, Tensor):
        if not same_place(target, value):
            put(target, shaped(value, target), alone_in_setting(references, value))
    elif isinstance(value, (Real, np.generic)):
        fill(target, value)
    else:
        refuse(
            "only tensors and numbers can be assigned to a tensor",
            limit="a tensor, a number",
            got=type(value).__name__,
            remedy="arrays of the host are nl.shared_constant(array), or an argument; "
            "nisa instructions take the tensor as dst=",
            code="TRN411",
        )


def put(target: Tensor, value: Tensor, alone: bool) -> None:
    """target = value of the same shape. alone: nobody else holds the value."""
    if alone and value.on_chip and _takes_it(target, value) and ins.redirect(value, target):
        return
    if value.on_chip and target.shape[0] == value.shape[0] and reachable(target) and reachable(value):
        compose.copy(value, dst=target)
    elif target.storage.region.memory is Memory.PSUM and not value.on_chip:
        compose.copy(compose.load(value), dst=target)
    else:
        dma_copy(target, compose.in_sbuf(value) if value.on_chip else value)


def _takes_it(target: Tensor, value: Tensor) -> bool:
    """Whether the instruction that made the value may write there: engines do not reach HBM."""
    if target.on_chip:
        return True
    name, _ = current().last_writer_of(value)
    return name != "" and isa.REGISTRY[name].is_dma


def fill(target: Tensor, value: Any) -> None:
    """One value everywhere. Rows that no engine can start on, and HBM, get it from a tile by DMA."""
    if reachable(target):
        compose.fill(target, value)
        return
    rows = target if target.ndim > 1 else target.reshape((1, target.size))
    for first in range(0, rows.shape[0], compose.PARTITIONS):
        part = rows.slice(0, first, min(first + compose.PARTITIONS, rows.shape[0]))
        dma_copy(part, compose.filled(part.shape, value, target.format))


def reachable(tensor: Tensor) -> bool:
    """Whether engines can work on these rows: they start on partitions that the number of rows allows."""
    if not tensor.on_chip:
        return False
    first = tensor.storage.buffer.first_partition + tensor.offset // tensor.storage.row
    return first in allowed_starts(tensor.shape[0])


def shaped(value: Tensor, target: Tensor) -> Tensor:
    """The value in the target's shape: reshaped, or repeated. Raises ConstraintError where the target is smaller."""
    if value.shape == target.shape:
        return value
    if not target.on_chip and _without_ones(value) == _without_ones(target):
        return value  # a transfer counts elements
    if value.size == target.size and (value.shape[0] == target.shape[0] or not value.on_chip):
        return value._reshaped(target.shape)
    if value.size > target.size:
        refuse(
            "a tile is assigned to a smaller one",
            limit=list(target.shape),
            got=list(value.shape),
            remedy="slice the value, or make the target larger",
        )
    if value.ndim < target.ndim:
        value = value._reshaped((value.shape[0], *(1,) * (target.ndim - value.ndim), *value.shape[1:]))
    return compose.broadcast_to(value, target.shape)


def _without_ones(tensor: Tensor) -> tuple[int, ...]:
    return tuple(n for n in tensor.shape if n != 1)


def same_place(a: Tensor, b: Tensor) -> bool:
    """Whether two views are of the same elements."""
    return a.storage is b.storage and (a.offset, a.shape, a.strides) == (b.offset, b.shape, b.strides)
