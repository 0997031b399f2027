# SPDX-License-Identifier: Apache-2.0
"""What the ranks of an SPMD module do together. A module is for one rank unless who imports it says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.entries import TracedValue, known
from trnlab.frontends.stablehlo.lowerings.control import simple_body
from trnlab.frontends.stablehlo.registry import OpSite, UnsupportedForm, lowers
from trnlab.graph.ops import OPS

_KINDS = OPS["all_reduce"].attrs["kind"].choices


@lowers("stablehlo.all_reduce")
def all_reduce(site: OpSite) -> Sequence[TracedValue]:
    """All-reduce of one op over the ranks."""
    return _together(site, "all_reduce", {**_groups(site), "kind": _kind(site)})


@lowers("stablehlo.all_gather")
def all_gather(site: OpSite) -> Sequence[TracedValue]:
    """Along its dimension."""
    return _together(site, "all_gather", {"all_gather_dim": mlir.int_(site.raw, "all_gather_dim"), **_groups(site)})


@lowers("stablehlo.reduce_scatter")
def reduce_scatter(site: OpSite) -> Sequence[TracedValue]:
    """Along its dimension."""
    axis = mlir.int_(site.raw, "scatter_dimension")
    return _together(site, "reduce_scatter", {"scatter_dimension": axis, **_groups(site), "kind": _kind(site)})


@lowers("stablehlo.all_to_all")
def all_to_all(site: OpSite) -> Sequence[TracedValue]:
    """In as many parts as there are ranks."""
    attrs = {key: mlir.int_(site.raw, key) for key in ("split_dimension", "concat_dimension")}
    return _together(site, "all_to_all", {**attrs, **_groups(site)})


@lowers("stablehlo.collective_permute")
def collective_permute(site: OpSite) -> Sequence[TracedValue]:
    """From sources to targets."""
    _several(site)
    return _together(site, "collective_permute", {"source_target_pairs": mlir.ints(site.raw, "source_target_pairs")})


@lowers("stablehlo.collective_broadcast")
def collective_broadcast(site: OpSite) -> Sequence[TracedValue]:
    """From the first of each group."""
    return _together(site, "collective_broadcast", _groups(site))


@lowers("stablehlo.partition_id")
def partition_id(site: OpSite) -> Any:
    """The number of the rank; zero where there is one."""
    if site.t.ranks == 1:
        return known(np.zeros((), np.uint32), site.type)
    if site.t.rank is not None:
        return site.t.rank
    return _together(site, "partition_id", {})


def _together(site: OpSite, name: str, attrs: dict[str, Any]) -> Sequence[TracedValue]:
    """The op, or its operands where each rank is a group of its own."""
    if attrs.get("group_size") == 1:
        return site.operands
    _several(site)
    written: Sequence[TracedValue] = site.written(lambda *values: list(site.b.append(name, values, attrs).results))
    return written


def _several(site: OpSite) -> None:
    if site.t.ranks == 1:
        raise UnsupportedForm(
            "a program here is for one core", "run the step without shard_map, pmap or a mesh", "TRN235"
        )


def _groups(site: OpSite) -> dict[str, Any]:
    """Replica groups in one row. No groups: all ranks in one."""
    ranks = mlir.ints(site.raw, "replica_groups")
    if not ranks:
        ranks = tuple(range(site.t.ranks))
        return {"replica_groups": ranks, "group_size": len(ranks)}
    if min(ranks) < 0:
        raise UnsupportedForm("its replica groups are not all of one size", "make them so")
    return {"replica_groups": ranks, "group_size": mlir.columns(site.raw, "replica_groups")}


def _kind(site: OpSite) -> str:
    kind = simple_body(site)
    if kind not in _KINDS:
        raise UnsupportedForm("it combines with more than one op", f"use one of {', '.join(_KINDS)}")
    return str(kind)
