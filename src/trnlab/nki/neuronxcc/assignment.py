# SPDX-License-Identifier: Apache-2.0
"""target = value and target += value: the instruction that made a value writes to the target itself, where it can.

It can when the value is the last thing recorded, and nobody else holds it: a kernel that gave it a name may still
look at it, so that it is copied then.
"""

from __future__ import annotations

import sys
from typing import Any

from trnlab.isa.base import Memory
from trnlab.lang import compose
from trnlab.lang import instructions as ins
from trnlab.lang.assignment import fill, put, same_place, shaped
from trnlab.lang.recorder import current
from trnlab.lang.tensor import Tensor
from trnlab.nki.neuronxcc.defined import Box, defined, record, record_sum
from trnlab.nki.neuronxcc.masked import cut
from trnlab.nki.neuronxcc.zeros import adds, settle


class LoopSum:
    """nl.loop_reduce: the fold of a tile over iterations; the first one overwrites where it is assigned."""

    def __init__(self, tile: Tensor, first: bool, op: str) -> None:
        self.tile, self.first, self.op = tile, first, op


class _Probe:
    """How many references a value has inside of __iadd__ when nobody else holds it."""

    adding = 0

    def __iadd__(self, value: Any) -> _Probe:
        _Probe.adding = sys.getrefcount(value)
        return self


def _calibrate() -> int:
    probe = _Probe()
    probe += object()
    return _Probe.adding


_ADDING = _calibrate()


def alone_in_adding(references: int, value: Any) -> bool:
    """Whether only `target += value` holds the value, which has so many references inside of __iadd__."""
    return references <= _ADDING + (isinstance(value, Tensor) and current().wrote(value))


def assign(target: Tensor, value: Any, alone: bool = False) -> None:
    """target = value. alone: nobody else holds the value."""
    if isinstance(value, LoopSum):
        _fold(target, value)
    elif isinstance(value, Tensor):
        if not same_place(target, value):
            first = len(current().builder) - 1
            continued = _continues(target, value)
            _assign_tile(target, shaped(value, target), alone)
            if continued:
                current().free.extend(range(first, len(current().builder)))
    else:
        record(target, {})
        fill(target, value)


_ORDERLESS = frozenset(
    {
        "add",
        "multiply",
        "max",
        "min",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "logical_and",
        "logical_or",
        "logical_xor",
    }
)


def _continues(target: Tensor, value: Tensor) -> bool:
    """Whether the value was just computed as target op something, as `target op= something` would.

    The order of such updates is free, so that independent iterations may share them.
    """
    name, arguments = current().last_writer_of(value)
    if name not in ("tensor_tensor", "tensor_scalar") or arguments.get("op1") is not None:
        return False
    op = arguments.get("op") if name == "tensor_tensor" else arguments.get("op0")
    places = [x for x in map(arguments.get, ("data", "data1", "data2")) if isinstance(x, Tensor)]
    here = [same_place(target, x) for x in places]
    if str(op) == "subtract":
        return here[0] and not arguments.get("reverse0")
    return str(op) in _ORDERLESS and any(here)


def _assign_tile(target: Tensor, value: Tensor, alone: bool) -> None:
    box: Box = defined(value)
    if any(low >= high for low, high in box.values()):
        return
    whole = target
    value, target = cut(value, box), cut(target, box)
    settle(value)
    put(target, value, alone)
    record(whole, box)


def _fold(target: Tensor, value: LoopSum) -> None:
    if value.first:
        assign(target, value.tile)
    else:
        update(value.op, target, value.tile)


def add_to(target: Tensor, value: Any, alone: bool = False) -> None:
    """target += value: a matmul just recorded accumulates in PSUM, anything else is added."""
    in_psum = target.storage.region.memory is Memory.PSUM
    if in_psum and alone and isinstance(value, Tensor) and value.shape == target.shape:
        box = defined(value)
        part = cut(target, box)
        adds(part)
        if ins.redirect(cut(value, box), part, accumulate=None):
            record_sum(target, box)
            return
    update("add", target, value)


def update(op: str, target: Tensor, value: Any) -> None:
    """target = target op value, where the value is defined. Independent iterations may share such a sum."""
    settle(target)
    if isinstance(value, Tensor):
        value = shaped(value, target)
        settle(value)
        box = defined(value)
        if any(low >= high for low, high in box.values()):
            return
        value, target = cut(value, box), cut(target, box)
    recorder = current()
    first = len(recorder.builder)
    compose.binary(op, target, value, dst=target)
    recorder.free.extend(range(first, len(recorder.builder)))


def settled(tensor: Tensor) -> Tensor:
    """The tensor, with the zeros that were promised for it written."""
    settle(tensor)
    return tensor
