# SPDX-License-Identifier: Apache-2.0
"""Collectives as StableHLO writes them: groups of partitions of one SPMD module."""

from __future__ import annotations

from collections.abc import Iterator

from trnlab.graph.ir import Op, Value

# Groups are of numbers of devices, as with `use_global_device_ids`: of partitions, where there is one replica.
_HANDLE = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
_WITH_BODY = ("all_reduce", "reduce_scatter")


def separate(op: Op) -> Iterator[tuple[tuple[Value, ...], tuple[Value, ...]]]:
    """Operands and results of the ops that it takes: reduce_scatter has one of each."""
    if op.name == "reduce_scatter":
        yield from (((x,), (y,)) for x, y in zip(op.operands, op.results))
    else:
        yield op.operands, op.results


def has_body(op: Op) -> bool:
    """Whether it says with a region how two elements are combined."""
    return op.name in _WITH_BODY


def attributes(op: Op) -> str:
    """All attributes as text."""
    attrs = op.attrs
    if op.name == "partition_id":
        return ""
    if op.name == "collective_permute":
        ends = attrs["source_target_pairs"]
        return f"{_HANDLE}, source_target_pairs = {_table(ends, 2)}"
    shown = [_HANDLE, f"replica_groups = {_table(attrs['replica_groups'], attrs['group_size'])}"]
    if op.name in ("all_reduce", "all_gather", "reduce_scatter"):
        shown.append("use_global_device_ids")
    named = ("all_gather_dim", "scatter_dimension", "split_dimension", "concat_dimension")
    shown += [f"{key} = {attrs[key]} : i64" for key in named if key in attrs]
    if op.name == "all_to_all":
        shown.append(f"split_count = {attrs['group_size']} : i64")
    return ", ".join(shown)


def _table(numbers: tuple[int, ...], columns: int) -> str:
    rows = [list(numbers[i : i + columns]) for i in range(0, len(numbers), columns)]
    return f"dense<{rows}> : tensor<{len(rows)}x{columns}xi64>" if rows else "dense<> : tensor<0x2xi64>"
