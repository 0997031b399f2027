# SPDX-License-Identifier: Apache-2.0
"""`jax.lax.ragged_dot` and its gradients as products of groups of rows, for which the graph has ops (ADR 174).

On a CPU, JAX spells each out as a product of all rows with every group's matrix, those of others made zero. That
stays, as what a named part of the module is made of (a composite of StableHLO): XLA on the host computes as before,
and who reads the module for the chip knows the name. What is no product of matrices, such as batches of them, is
spelled out alone, and so is what XLA is to divide between devices, for that takes composites apart first.

Shape letters: G groups, M rows, K summed, N columns.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.lax import lax as primitives
from jax.interpreters import mlir

_FORMATS = ("float32", "bfloat16", "float16")
_DOT = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
_OUTER = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())


def _ragged_dot_general(x: Any, y: Any, sizes: Any, **how: Any) -> Any:
    """What the operation of JAX is made of, on a CPU."""
    if not _has_a_form(x, y, sizes, how):
        return primitives._ragged_dot_general_impl(x, y, sizes, **how)
    numbers = how["ragged_dot_dimension_numbers"]
    (((summed,), (own,)), _), ragged = numbers.dot_dimension_numbers, numbers.lhs_ragged_dimensions[0]
    if x.dtype != y.dtype:  # as the product of the two would have them: gradients of results in a wider format
        x, y = (v.astype(jnp.promote_types(x.dtype, y.dtype)) for v in (x, y))
    ends = jax.lax.cumsum(sizes.astype(jnp.int32))
    rows = x if ragged == 0 else x.T
    if ragged == summed:
        return _named("trnlab.grouped_outer", _OUTER, how)(rows, y if own == 0 else y.T, ends)
    (group,) = numbers.rhs_group_dimensions
    return _named("trnlab.grouped_dot", _DOT, how)(rows, y.transpose(group, own, 3 - group - own), ends)


def _has_a_form(x: Any, y: Any, sizes: Any, how: dict[str, Any]) -> bool:
    """Whether the chip's ops say the same: of matrices, whose rows or whose terms are in groups."""
    numbers = how["ragged_dot_dimension_numbers"]
    contracting, batch = numbers.dot_dimension_numbers
    return (
        x.ndim == 2
        and y.ndim == 2 + len(numbers.rhs_group_dimensions)
        and sizes.ndim == 1
        and not any(batch)
        and all(len(dims) == 1 for dims in contracting)
        and x.dtype.name in _FORMATS
        and y.dtype.name in _FORMATS
        and how["group_offset"] is None
        and how["out_sharding"] is None
        and _precision(how) is not None
    )


def _precision(how: dict[str, Any]) -> str | None:
    """Whether one of the operands must not be narrowed; None of an algorithm by name."""
    given = how["precision"]
    each = given if isinstance(given, tuple) else (given,)
    if not all(p is None or isinstance(p, jax.lax.Precision) for p in each):
        return None
    return "HIGHEST" if jax.lax.Precision.HIGHEST in each else "DEFAULT"


def _named(name: str, numbers: Any, how: dict[str, Any]) -> Any:
    """A product of matrices by a name, of where groups end in the place of their sizes."""

    def spelled_out(x: Any, y: Any, ends: Any, precision: str) -> Any:
        sizes = jnp.diff(ends, prepend=0)
        return primitives._ragged_dot_general_impl(x, y, sizes, **{**how, "ragged_dot_dimension_numbers": numbers})

    return partial(jax.lax.composite(spelled_out, name), precision=_precision(how))


def _lower(ctx: Any, *operands: Any, **how: Any) -> Any:
    alone = getattr(ctx.module_context.axis_context, "num_devices", 0) == 1
    meaning = _ragged_dot_general if alone else primitives._ragged_dot_general_impl
    return mlir.lower_fun(partial(meaning, **how), multiple_results=False)(ctx, *operands)


mlir.register_lowering(primitives.ragged_dot_general_p, _lower, platform="cpu")
