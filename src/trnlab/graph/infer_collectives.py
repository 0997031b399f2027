# SPDX-License-Identifier: Apache-2.0
"""Types of what ranks do together, see `infer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trnlab.graph.ir import TensorType
from trnlab.graph.needs import axes, need, same_dtype
from trnlab.numerics.dtypes import uint32

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]


def _groups(attrs: Attrs) -> int:
    """The size of the groups, once they are groups."""
    ranks, size = attrs["replica_groups"], attrs["group_size"]
    whole = size > 0 and len(ranks) > 0 and len(ranks) % size == 0
    legal = whole and len(set(ranks)) == len(ranks) and min(ranks) >= 0
    limit = "each rank once, group_size ranks in each group"
    need(legal, "these are no replica groups", limit, f"{list(ranks)} of {size}", "TRN304")
    return int(size)


def _scaled(types: Types, axis: int, label: str, change: Callable[[int], int]) -> tuple[TensorType, ...]:
    """Each type with another size along `axis`."""
    found = []
    for operand in types:
        axes(label, (axis,), operand.rank)
        shape = (*operand.shape[:axis], change(operand.shape[axis]), *operand.shape[axis + 1 :])
        found.append(TensorType(shape, operand.dtype))
    return tuple(found)


def _split(size: int, parts: int) -> int:
    need(size % parts == 0, "a dimension does not split into equal parts", f"a multiple of {parts}", size)
    return size // parts


def _all_reduce(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _groups(attrs)
    same_dtype(types)
    return tuple(types)


def _all_gather(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    ranks = _groups(attrs)
    same_dtype(types)
    return _scaled(types, attrs["all_gather_dim"], "all_gather_dim", lambda n: n * ranks)


def _reduce_scatter(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    ranks = _groups(attrs)
    same_dtype(types)
    return _scaled(types, attrs["scatter_dimension"], "scatter_dimension", lambda n: _split(n, ranks))


def _all_to_all(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    ranks = _groups(attrs)
    if attrs["sent"]:
        return _exchanged(types[0], attrs, ranks)
    halved = _scaled(types, attrs["split_dimension"], "split_dimension", lambda n: _split(n, ranks))
    return _scaled(halved, attrs["concat_dimension"], "concat_dimension", lambda n: n * ranks)


def _exchanged(given: TensorType, attrs: Attrs, ranks: int) -> tuple[TensorType, ...]:
    sent, received = attrs["sent"], attrs["received"]
    whole = attrs["split_dimension"] == attrs["concat_dimension"] == 0 and min(*sent, *received) >= 0
    legal = whole and len(sent) == len(received) == ranks and 0 <= attrs["position"] < ranks and given.rank > 0
    limit = "parts of dimension 0, one for each rank of a group"
    need(legal, "these are no parts of an exchange", limit, f"sent {list(sent)}, received {list(received)}", "TRN304")
    need(sum(sent) <= given.shape[0], "more is sent than there is", given.shape[0], sum(sent))
    return (TensorType((max(sum(received), 1), *given.shape[1:]), given.dtype),)


def _collective_permute(types: Types, attrs: Attrs) -> TensorType:
    ends = attrs["source_target_pairs"]
    sources, targets = ends[::2], ends[1::2]
    legal = len(sources) == len(targets) == len(set(sources)) == len(set(targets)) and min(ends, default=0) >= 0
    need(legal, "these are no pairs of ranks", "no source twice, no target twice", list(ends), "TRN304")
    return types[0]


def _collective_broadcast(types: Types, attrs: Attrs) -> TensorType:
    _groups(attrs)
    return types[0]


RULES: dict[str, Callable[[Types, Attrs], TensorType | tuple[TensorType, ...]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "collective_permute": _collective_permute,
    "collective_broadcast": _collective_broadcast,
    "partition_id": lambda types, attrs: TensorType((), uint32),
}
