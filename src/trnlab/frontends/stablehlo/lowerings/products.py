# SPDX-License-Identifier: Apache-2.0
"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.entries import TracedValue
from trnlab.frontends.stablehlo.lowerings.shape import reversed_along
from trnlab.frontends.stablehlo.registry import OpSite, UnsupportedForm, lowers


def _precision(site: OpSite) -> str:
    """What no session's precision may narrow asks for the highest."""
    return "HIGHEST" if "HIGHEST" in mlir.words(site.raw, "precision_config") else "DEFAULT"


@lowers("stablehlo.dot_general")
def dot_general(site: OpSite) -> TracedValue:
    """In the result's format."""
    numbers = mlir.dot_numbers(site.raw)
    attrs = {**numbers, "dtype": site.type.dtype, "precision": _precision(site)}
    return site.op("dot_general", *site.operands, **attrs, **_asked(site))


def _asked(site: OpSite) -> dict[str, int]:
    """None of what a loop computes again: the model asked for it in the loop of the forward pass."""
    return {"asked": 0} if site.t.looping and site.t.again else {}


@lowers("trnlab.grouped_dot", "trnlab.grouped_outer")
def grouped(site: OpSite) -> TracedValue:
    """Composites of what `jax.lax.ragged_dot` and its gradients are: see `frontends.jax.grouped`."""
    name = mlir.text(site.raw, "name").replace("trnlab.", "trn.")
    precision = mlir.text_of_composite(site.raw, "precision")
    return site.op(name, *site.operands, dtype=site.type.dtype, precision=precision, **_asked(site))


@lowers("stablehlo.dot")
def dot(site: OpSite) -> TracedValue:
    """The last dimension of lhs with the first of rhs."""
    rank = len(site.operands[0].shape)
    attrs = {"lhs_contracting_dimensions": (rank - 1,), "rhs_contracting_dimensions": (0,)}
    return site.op("dot_general", *site.operands, **attrs, dtype=site.type.dtype, precision=_precision(site))


@lowers("stablehlo.convolution")
def convolution(site: OpSite) -> TracedValue:
    """With batch, features and space in the order of the graph's op."""
    lhs_order, rhs_order, out_order = mlir.convolution_numbers(site.raw)
    lhs, rhs = site.operands
    rank = len(lhs_order) - 2
    if not rank:
        raise UnsupportedForm("a convolution without dimensions of space", "write it as a matrix product")
    turned = mlir.bools(site.raw, "window_reversal", (False,) * rank)
    before = _before_reversal(site, rhs_order[2:])
    if before is not None:
        rhs, turned = before, tuple(not turn for turn in turned)
    lhs, rhs = transposed(site, lhs, lhs_order), transposed(site, rhs, rhs_order)
    if any(turned) and not all(turned):
        for dim, turn in enumerate(turned):
            rhs = reversed_along(site, rhs, dim + 2) if turn else rhs
        turned = (False,)
    padding = np.reshape(mlir.ints(site.raw, "padding", (0,) * (2 * rank)), (rank, 2))
    ones = (1,) * rank
    attrs: dict[str, Any] = {
        **{k: mlir.ints(site.raw, k, ones) for k in ("window_strides", "lhs_dilation", "rhs_dilation")},
        "padding_low": tuple(map(int, padding[:, 0])),
        "padding_high": tuple(map(int, padding[:, 1])),
        "window_reversal": turned[0],
        "feature_group_count": mlir.int_(site.raw, "feature_group_count", 1),
        "batch_group_count": mlir.int_(site.raw, "batch_group_count", 1),
    }
    found = site.op("convolution", lhs, rhs, **attrs, dtype=site.type.dtype, precision=_precision(site))
    return transposed(site, found, tuple(np.argsort(out_order).tolist()))


def _before_reversal(site: OpSite, space: Sequence[int]) -> TracedValue | None:
    """The window before an op reversed it in all dimensions of space, as gradients by the input do; None where none
    did. The convolution itself reads it the other way round."""
    made = site.raw.operands[1].owner
    if getattr(made, "name", "") != "stablehlo.reverse":
        return None
    window, dims = site.operands[1].shape, set(mlir.ints(made.opview, "dimensions"))
    longer = {d for d in space if window[d] > 1}
    return site.around.get(made.operands[0]) if longer <= dims <= set(space) else None


def transposed(site: OpSite, x: TracedValue, order: Sequence[int]) -> TracedValue:
    """x with its dimensions in this order."""
    order = tuple(order)
    return x if order == tuple(range(len(order))) else site.op("transpose", x, permutation=order)
