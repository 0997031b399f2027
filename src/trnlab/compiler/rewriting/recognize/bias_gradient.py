# SPDX-License-Identifier: Apache-2.0
"""The gradient of what is added to scores, as frameworks write it: sums of the gradient of scores over the axes that
the bias repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trnlab.compiler.rewriting.recognize.axes import Dim, Dims, flat, resolved, size_of
from trnlab.compiler.rewriting.recognize.facts import GRADIENT, Terms, same_terms
from trnlab.compiler.rewriting.recognize.region import AttentionRegion
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Op, Value


@dataclass(frozen=True)
class BiasSum:
    """One sum: what it is of, `factor` times the gradient of the scores with their bias, and over which axes."""

    factor: float
    along: Dim
    left: Dims
    of_batch: bool  # all of the batch is summed up


def bias_sums(region: AttentionRegion, groups: Sequence[Dim]) -> dict[Op, BiasSum]:
    """Those of the sums of a region that are of the gradient of scores. groups: axes of batch, heads, queries,
    keys."""
    found = {}
    for op in region.sums:
        fact, dims = region.facts[op.operands[0]]
        if not isinstance(fact, Terms) or region.into is None or fact.gradient is not region.into.op:
            continue
        factor = same_terms(fact, GRADIENT)
        axes = [axis for dim in resolved(dims) for axis in dim]
        whole = {axis for group in groups for axis in flat(group)}
        if factor is None or len(axes) != len(whole) or {*axes} != whole:
            continue
        along = flat(axis for d in op.attrs["dimensions"] for axis in dims[d])
        left = tuple(dim for d, dim in enumerate(dims) if d not in op.attrs["dimensions"])
        found[op] = BiasSum(factor, along, left, {*flat(groups[0])} <= {*along})
    return found


def given_sum(b: GraphBuilder, op: Op, wanted: BiasSum, dbias: Value, groups: Sequence[Dim]) -> Value:
    """What a sum was, from the gradient of the scores [B, H, T, S], or [1, H, T, S] where it is summed already."""
    batch, *rest = (flat(group) for group in groups)
    along, axes = {*flat(wanted.along)}, [axis for group in rest for axis in group]
    if dbias.shape[0] == size_of(batch):
        axes = [*batch, *axes]
    value = b.reshape(dbias, [axis.size for axis in axes])
    summed = [i for i, axis in enumerate(axes) if axis in along]
    if summed:
        value = b.reduce(value, summed)
    kept = [axis for axis in axes if axis not in along]
    order = [axis for dim in resolved(wanted.left) for axis in dim]
    value = b.reshape(b.transpose(value, [kept.index(axis) for axis in order]), op.result.shape)
    if not math.isclose(wanted.factor, 1.0, rel_tol=1e-6):
        value = b.multiply(value, wanted.factor)
    return b.convert(value, op.result.dtype)
