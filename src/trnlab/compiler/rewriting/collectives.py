# SPDX-License-Identifier: Apache-2.0
"""Collectives on their way to the CC cores: whole tensors in HBM, in one form each, reductions in buckets.

canonical    parts of ranks lie one behind the other: every dimension but the first is moved there by views
bucketed     reductions that do not wait for each other, over the same groups and in one format, are one collective of
             up to so many bytes, which starts when the last of them is there
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import COLLECTIVE, OPS
from trnlab.graph.passes.rewrite import rewrite
from trnlab.units import MIB

BUCKET_MIB = 50  # the vendor's default: bucket_allreduce of neuronx-distributed, 50 MB


def canonical_collectives(graph: Graph) -> None:
    """Bring collectives into their canonical forms; same meaning."""
    rewrite(
        graph,
        {
            "all_reduce": _alone,
            "all_gather": _gathered,
            "reduce_scatter": _scattered,
            "all_to_all": _exchanged,
            "collective_broadcast": _broadcast,
        },
    )


def _alone(op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
    """A rank that is a group of its own has the result."""
    return op.operands if op.attrs["group_size"] == 1 else None


def _gathered(op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
    axis, ranks = op.attrs["all_gather_dim"], op.attrs["group_size"]
    if ranks == 1 or axis == 0:
        return _alone(op, b)
    given = [b.reshape(x, (1, *x.shape)) for x in op.operands]
    found = b.append("all_gather", given, {**op.attrs, "all_gather_dim": 0}).results
    return tuple(b.reshape(_moved(b, x, 0, axis), r.shape) for x, r in zip(found, op.results))


def _scattered(op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
    axis, ranks = op.attrs["scatter_dimension"], op.attrs["group_size"]
    if ranks == 1 or axis == 0:
        return _alone(op, b)
    given = [_moved(b, _cut(b, x, axis, ranks), axis, 0) for x in op.operands]
    found = b.append("reduce_scatter", given, {**op.attrs, "scatter_dimension": 0}).results
    return tuple(b.reshape(x, r.shape) for x, r in zip(found, op.results))


def _exchanged(op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
    split, concat, ranks = op.attrs["split_dimension"], op.attrs["concat_dimension"], op.attrs["group_size"]
    if ranks == 1 or split == concat == 0:
        return _alone(op, b)
    parts = _moved(b, _cut(b, op.operands[0], split, ranks), split, 0)
    found = b.append("all_to_all", [parts], {**op.attrs, "split_dimension": 0, "concat_dimension": 0}).result
    return (b.reshape(_moved(b, found, 0, concat), op.result.shape),)


def _broadcast(op: Op, b: GraphBuilder) -> tuple[Value, ...] | None:
    """The chip's collectives know none: all send what they have, and the first one's is taken."""
    if op.attrs["group_size"] == 1:
        return op.operands
    (x,) = op.operands
    found = b.append("all_gather", [b.reshape(x, (1, *x.shape))], {**op.attrs, "all_gather_dim": 0}).result
    return (b.reshape(b.slice_dim(found, 0, 0, 1), x.shape),)


def _cut(b: GraphBuilder, x: Value, axis: int, parts: int) -> Value:
    """The tensor with a dimension taken apart: as many parts, and what each has."""
    return b.reshape(x, (*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :]))


def _moved(b: GraphBuilder, x: Value, source: int, target: int) -> Value:
    """The tensor with one dimension in another place."""
    order = [d for d in range(len(x.shape)) if d != source]
    order.insert(target, source)
    return b.transpose(x, order) if order != sorted(order) else x


# -- buckets --------------------------------------------------------------------------------------------------------


@dataclass
class _Bucket:
    """Reductions that become one."""

    ops: list[Op] = field(default_factory=list)
    nbytes: int = 0
    # members, before: they, and the collectives that they wait for, as bits
    members: int = 0
    before: int = 0


def bucket_reductions(graph: Graph, options: Mapping[str, Any]) -> None:
    """Make one all_reduce of several. options: "bucket_mib", 0 for none."""
    limit = int(options.get("bucket_mib", BUCKET_MIB)) * MIB
    buckets = [bucket for bucket in _buckets(graph, limit) if len(bucket.ops) > 1]
    if not buckets:
        return
    for bucket in buckets:
        joined = Op(
            "all_reduce",
            tuple(v for op in bucket.ops for v in op.operands),
            bucket.ops[0].attrs,
            tuple(v for op in bucket.ops for v in op.results),
            bucket.ops[0].loc,
            bucket.ops[0].origin,
        )
        for index, value in enumerate(joined.results):
            value.op, value.index = joined, index
        gone = set(bucket.ops)
        last = max(i for i, op in enumerate(graph.ops) if op in gone)
        graph.ops[last] = joined
        graph.ops = [op for op in graph.ops if op not in gone]
    graph.ops = _in_order(graph.ops)


def _buckets(graph: Graph, limit: int) -> list[_Bucket]:
    """All reductions in buckets, in the order in which they come."""
    behind: dict[Value, int] = {}  # for each value, the collectives that it waits for
    buckets: list[_Bucket] = []
    last: dict[tuple[Any, ...], _Bucket] = {}  # by groups, kind and format
    count = 0
    for op in graph.ops:
        before = 0
        for value in op.operands:
            before |= behind.get(value, 0)
        if OPS[op.name].kind == COLLECTIVE:
            bit, count = 1 << count, count + 1
            if op.name == "all_reduce":
                key = (*sorted(op.attrs.items()), op.operands[0].dtype.name)
                if key not in last or not _has_room(last[key], op, _closed(before, buckets), limit):
                    buckets.append(_Bucket())
                    last[key] = buckets[-1]
                _put(last[key], op, bit, before)
            before |= bit
        for value in op.results:
            behind[value] = before
    return buckets


def _put(bucket: _Bucket, op: Op, bit: int, before: int) -> None:
    bucket.ops.append(op)
    bucket.nbytes += sum(v.type.nbytes for v in op.operands)
    bucket.members |= bit
    bucket.before |= before


def _has_room(bucket: _Bucket, op: Op, before: int, limit: int) -> bool:
    """Whether the op fits in, and waits for none of the bucket, not even through another bucket."""
    return bucket.nbytes + sum(v.type.nbytes for v in op.operands) <= limit and not before & bucket.members


def _closed(before: int, buckets: list[_Bucket]) -> int:
    """What is waited for when whoever waits for one of a bucket waits for all of it."""
    while True:
        found = before
        for bucket in buckets:
            if found & bucket.members:
                found |= bucket.members | bucket.before
        if found == before:
            return found
        before = found


def _in_order(ops: list[Op]) -> list[Op]:
    """Topological order, otherwise as they stand."""
    place = {op: i for i, op in enumerate(ops)}
    readers: dict[Op, set[Op]] = {op: set() for op in ops}
    waiting = dict.fromkeys(ops, 0)
    for op in ops:
        for made in {v.op for v in op.operands if v.op is not None}:
            readers[made].add(op)
            waiting[op] += 1
    ready = [place[op] for op, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered: list[Op] = []
    while ready:
        op = ops[heapq.heappop(ready)]
        ordered.append(op)
        for reader in readers[op]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, place[reader])
    assert len(ordered) == len(ops), "collectives wait for each other"
    return ordered
