# SPDX-License-Identifier: Apache-2.0
"""When two groups are the same but for the tensors they are given: layers that repeat compile once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from trnlab.compiler.groups import Group, Partition
from trnlab.compiler.tiles import origin
from trnlab.graph.ir import Value

Signature = tuple[Any, ...]


def ports_of(group: Group, part: Partition, stores: Iterable[Value]) -> list[Value]:
    """The values in memory that a group reads, in the order of its ops, then those it writes; each once."""
    found: dict[Value, None] = {}
    for op in group.ops:
        for value in op.operands:
            if not part.inside(value, group) and part.splat(value) is None:
                found[part.root(value)] = None
    written = set(stores)
    return [*found, *(v for op in group.ops for v in op.results if v in written)]


def signature(group: Group, part: Partition, stores: set[Value]) -> Signature:
    """Equal for groups that one routine can serve, its parameters bound in the order of `ports_of`."""
    ports = {v: i for i, v in enumerate(ports_of(group, part, stores))}
    inner: dict[Value, int] = {}
    ops = []
    for op in group.ops:
        operands = tuple(_operand(v, group, part, ports, inner) for v in op.operands)
        attrs = tuple(sorted((k, _frozen(v)) for k, v in op.attrs.items()))
        for result in op.results:
            inner[result] = len(inner)
        results = tuple((r.shape, r.dtype.name, str(group.classes[r]), r in stores, _layout(r, part)) for r in op.results)
        ops.append((op.name, operands, attrs, results))
    return (group.kind, group.size, group.cols, group.update, tuple(ops))


def _operand(value: Value, group: Group, part: Partition, ports: dict[Value, int], inner: dict[Value, int]) -> Any:
    number = part.splat(value)
    if number is not None:
        return ("number", repr(number), value.dtype.name)
    seen = origin(value, group)
    if seen in inner:
        return ("inner", inner[seen], value.shape)
    look = part.strided(value)
    cls = str(group.outer.get(value, ""))
    if look.root in inner:
        return ("inner view", inner[look.root], look.offset, look.shape, look.strides)
    return ("port", ports[look.root], look.root.dtype.name, look.root.shape, look.offset, look.shape, look.strides, cls)


def _layout(value: Value, part: Partition) -> Any:
    return part.strided(value).strides


def _frozen(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes(), value.shape
    return repr(value)
