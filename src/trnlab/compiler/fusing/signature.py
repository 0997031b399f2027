# SPDX-License-Identifier: Apache-2.0
"""When two groups are the same but for the tensors they are given: layers that repeat compile once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup
from trnlab.compiler.fusing.tiles import origin
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS, REDUCE

Signature = tuple[Any, ...]
AWAITED = 1 << 18  # bytes, and elements, at most: with more, what is loaded next is of the same tensor


def ports_of(group: FusionGroup, part: Partition, stores: Iterable[Value]) -> list[Value]:
    """The values in memory that a group reads, in the order of its ops, then those it writes; each once."""
    found: dict[Value, None] = {}
    for op in group.ops:
        for i, value in enumerate(op.operands):
            if not part.inside(value, group) and (part.splat(value) is None or read_from_memory(op, i)):
                found[part.root(value)] = None
    written = set(stores)
    return [*found, *(v for op in group.ops for v in op.results if v in written)]


def read_from_memory(op: Op, index: int) -> bool:
    """Whether an operand must lie in memory even if it is one number throughout; elsewhere it goes into
    instructions."""
    number = OPS[op.name].kind in (ELEMENTWISE, REDUCE) or (op.name, index) in (("pad", 1), ("scatter", 0))
    return not number and op.name != "concatenate"


def signature(group: FusionGroup, part: Partition, stores: set[Value]) -> Signature:
    """Equal for groups that one routine can serve, its parameters bound in the order of `ports_of`."""
    ports = {v: i for i, v in enumerate(ports_of(group, part, stores))}
    inner: dict[Value, int] = {}
    ops = []
    for op in group.ops:
        operands = tuple(_operand(op, i, group, part, ports, inner) for i in range(len(op.operands)))
        attrs = tuple(sorted((k, _frozen(v)) for k, v in op.attrs.items()))
        for result in op.results:
            inner[result] = len(inner)
        results = tuple(
            (r.shape, r.dtype.name, str(group.classes[r]), r in stores, _layout(r, part)) for r in op.results
        )
        ops.append((op.name, operands, attrs, results, part.rules[op]))
    return (group.kind, group.size, group.cols, group.update, tuple(ops))


def sources(group: FusionGroup) -> Signature:
    """What is no part of a signature, and of the routine that is recorded from a group: where its ops come from."""
    return tuple((op.origin, op.loc) for op in group.ops)


def _operand(
    op: Op, index: int, group: FusionGroup, part: Partition, ports: dict[Value, int], inner: dict[Value, int]
) -> Any:
    value = op.operands[index]
    number = part.splat(value)
    if number is not None and not read_from_memory(op, index):
        return ("number", repr(number), value.dtype.name, value.shape)
    seen = origin(value, group)
    if seen in inner:
        return ("inner", inner[seen], value.shape)
    look = part.strided(value)
    cls = str(group.outer.get(value, ""))
    if look.base in inner:
        return ("inner view", inner[look.base], look.offset, look.shape, look.strides)
    return (
        "port",
        ports[look.base],
        look.base.dtype.name,
        look.base.shape,
        look.offset,
        look.shape,
        look.strides,
        cls,
        is_awaited(look.base, group, part),
    )


def is_awaited(value: Value, group: FusionGroup, part: Partition) -> bool:
    """Whether a value in memory is few bytes of the program's own, for which a group of few elements waits. Steps of
    training have other things to load: their loops are many and small at the end, and wait for each other."""
    small = value.type.nbytes <= AWAITED and group.size <= AWAITED
    return small and value.op is not None and not part.learns


def _layout(value: Value, part: Partition) -> Any:
    return part.strided(value).strides


def _frozen(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes(), value.shape
    return repr(value)
