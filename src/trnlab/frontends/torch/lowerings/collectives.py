# SPDX-License-Identifier: Apache-2.0
"""Functional collectives of PyTorch. They are asynchronous there, and so are the graph's: who waits is its reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnlab.frontends.torch.lowerings.registry import LoweringSite, UnsupportedOperatorForm, lowers
from trnlab.graph.ir import Value

_KINDS = {"sum": "add", "avg": "add", "max": "maximum", "min": "minimum", "product": "multiply"}


@lowers("_c10d_functional::wait_tensor.default")
def wait_tensor(site: LoweringSite, x: Value) -> Value:
    """The tensor itself."""
    return x


@lowers("_c10d_functional::all_reduce.default")
def all_reduce(site: LoweringSite, x: Value, op: str, group: Any) -> Value:
    """All-reduce of one tensor."""
    return _all_reduce(site, [x], op, group)[0]


@lowers("_c10d_functional::all_reduce_coalesced.default")
def all_reduce_coalesced(site: LoweringSite, xs: Sequence[Value], op: str, group: Any) -> list[Value]:
    """All-reduce of several tensors."""
    return [y for same in _by_format(xs) for y in _all_reduce(site, same, op, group)]


@lowers("_c10d_functional::all_gather_into_tensor.default")
def all_gather_into_tensor(site: LoweringSite, x: Value, size: int, group: Any) -> Value:
    """Along the first dimension."""
    return site.shaped(_said(site.b.all_gather([_with_rows(site, x)], _groups(group)), group)[0])


@lowers("_c10d_functional::all_gather_into_tensor_coalesced.default")
def all_gather_into_tensor_coalesced(site: LoweringSite, xs: Sequence[Value], size: int, group: Any) -> list[Value]:
    """Several along the first dimension."""
    return [y for same in _by_format(xs) for y in _said(site.b.all_gather(same, _groups(group)), group)]


@lowers("_c10d_functional::reduce_scatter_tensor.default")
def reduce_scatter_tensor(site: LoweringSite, x: Value, op: str, size: int, group: Any) -> Value:
    """Along the first dimension."""
    return _reduce_scatter(site, [x], op, group)[0]


@lowers("_c10d_functional::reduce_scatter_tensor_coalesced.default")
def reduce_scatter_tensor_coalesced(
    site: LoweringSite, xs: Sequence[Value], op: str, size: int, group: Any
) -> list[Value]:
    """Several along the first dimension."""
    return [y for same in _by_format(xs) for y in _reduce_scatter(site, same, op, group)]


@lowers("_c10d_functional::all_to_all_single.default")
def all_to_all_single(
    site: LoweringSite, x: Value, received: Sequence[int], sent: Sequence[int], group: Any
) -> Value:
    """Along the first dimension. Sizes of parts are those of this rank, and known: shapes of a program are fixed."""
    if len({*received, *sent}) <= 1:
        return _said([site.b.all_to_all(x, _groups(group))], group)[0]
    b, rest = site.b, x.shape[1:]
    if 0 in rest:
        return b.constant(0, x.dtype, site.shape)
    given = x if x.type.size else b.constant(0, x.dtype, (1, *rest))
    found = _said([b.exchange(given, _groups(group), sent, received, _position(group))], group)[0]
    return found if sum(received) else b.slice_dim(found, 0, 0, 0)


@lowers("_dtensor::shard_dim_alltoall.default")
def shard_dim_alltoall(site: LoweringSite, x: Value, gathered: int, shared: int, group: Any) -> Value:
    """A DTensor that is in parts of one dimension comes to be in parts of another."""
    return _said([site.b.all_to_all(x, _groups(group), split=shared, concat=gathered)], group)[0]


@lowers("_c10d_functional::broadcast.default")
def broadcast(site: LoweringSite, x: Value, source: int, group: Any) -> Value:
    """From a position of the group."""
    groups = tuple((each[source], *(r for r in each if r != each[source])) for each in _groups(group))
    return _said([site.b.collective_broadcast(x, groups)], group)[0]


def _groups(group: Any) -> Any:
    from trnlab.frontends.torch.parallel.groups import replica_groups

    return replica_groups(group)


def _position(group: Any) -> int:
    from trnlab.frontends.torch.parallel.groups import position_in

    return position_in(group)


def _all_reduce(site: LoweringSite, xs: Sequence[Value], op: str, group: Any) -> list[Value]:
    groups = _groups(group)
    return _mean(site, _said(site.b.all_reduce(xs, groups, _kind(op)), group), op, len(groups[0]))


def _reduce_scatter(site: LoweringSite, xs: Sequence[Value], op: str, group: Any) -> list[Value]:
    groups = _groups(group)
    return _mean(site, _said(site.b.reduce_scatter(xs, groups, kind=_kind(op)), group), op, len(groups[0]))


def _said(results: Sequence[Value], group: Any) -> Sequence[Value]:
    """Results of a collective, once it has what its group says of its purpose."""
    from trnlab.frontends.torch.parallel.groups import purpose_of

    made = results[0].op
    assert made is not None
    made.attrs["purpose"] = purpose_of(group)
    return results


def _kind(op: str) -> str:
    found = _KINDS.get(op.lower())
    if found is None:
        raise UnsupportedOperatorForm(f"the chip's collectives have no {op!r}", f"use one of {', '.join(_KINDS)}")
    return found


def _mean(site: LoweringSite, sums: Sequence[Value], op: str, ranks: int) -> list[Value]:
    """The sums, or for "avg" those divided by the number of ranks."""
    return [site.b.divide(x, float(ranks)) for x in sums] if op.lower() == "avg" else list(sums)


def _with_rows(site: LoweringSite, x: Value) -> Value:
    """A tensor with a dimension to gather along."""
    return x if x.shape else site.b.reshape(x, (1,))


def _by_format(xs: Sequence[Value]) -> list[list[Value]]:
    """Neighbours of one format together: those are one collective."""
    found: list[list[Value]] = []
    for x in xs:
        if found and found[-1][0].dtype is x.dtype:
            found[-1].append(x)
        else:
            found.append([x])
    return found
