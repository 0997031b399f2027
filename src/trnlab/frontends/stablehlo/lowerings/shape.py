# SPDX-License-Identifier: Apache-2.0
"""Sources, and ops that only move elements."""

from __future__ import annotations

import numpy as np

from trnlab.frontends.stablehlo import mlir
from trnlab.frontends.stablehlo.entries import TracedValue, known
from trnlab.frontends.stablehlo.registry import OpSite, UnsupportedForm, lowers
from trnlab.graph.ir import TensorType
from trnlab.numerics.dtypes import int32


@lowers("stablehlo.constant")
def constant(site: OpSite) -> TracedValue:
    """Its numbers."""
    return known(mlir.constant(site.raw), site.type)


@lowers("stablehlo.iota", "stablehlo.dynamic_iota")
def iota(site: OpSite) -> TracedValue:
    """Each element's index along a dimension; computed, and written down as what it is."""
    attrs = {"iota_dimension": mlir.int_(site.raw, "iota_dimension"), "shape": site.type.shape}
    return site.op("iota", dtype=site.type.dtype, **attrs)


@lowers("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim")
def broadcast_in_dim(site: OpSite) -> TracedValue:
    """To the result's shape."""
    dims = mlir.ints(site.raw, "broadcast_dimensions")
    return site.op("broadcast_in_dim", site.operands[0], shape=site.type.shape, broadcast_dimensions=dims)


@lowers("stablehlo.reshape", "stablehlo.dynamic_reshape")
def reshape(site: OpSite) -> TracedValue:
    """To the result's shape."""
    x = site.operands[0]
    return x if x.shape == site.type.shape else site.op("reshape", x, shape=site.type.shape)


@lowers("stablehlo.transpose")
def transpose(site: OpSite) -> TracedValue:
    """In the order of a permutation."""
    return site.op("transpose", *site.operands, permutation=mlir.ints(site.raw, "permutation"))


@lowers("stablehlo.slice")
def slice_(site: OpSite) -> TracedValue:
    """Bounds and strides."""
    attrs = {k: mlir.ints(site.raw, k) for k in ("start_indices", "limit_indices", "strides")}
    return site.op("slice", *site.operands, **attrs)


@lowers("stablehlo.concatenate")
def concatenate(site: OpSite) -> TracedValue:
    """Along one dimension."""
    if len(site.operands) == 1:
        return site.operands[0]
    return site.op("concatenate", *site.operands, dimension=mlir.int_(site.raw, "dimension"))


@lowers("stablehlo.pad")
def pad(site: OpSite) -> TracedValue:
    """Around and between elements; less than nothing crops."""
    names = "edge_padding_low", "edge_padding_high", "interior_padding"
    return site.op("pad", *site.operands, **{k: mlir.ints(site.raw, k) for k in names})


@lowers("stablehlo.reverse")
def reverse(site: OpSite) -> TracedValue:
    """Rows by number, the last one first."""
    x = site.operands[0]
    for dim in mlir.ints(site.raw, "dimensions"):
        if x.shape[dim] > 1:
            x = reversed_along(site, x, dim)
    return x


def reversed_along(site: OpSite, x: TracedValue, dim: int) -> TracedValue:
    """x with the elements along `dim` in reverse."""
    size, rank = x.shape[dim], len(x.shape)
    ids = known(np.arange(size - 1, -1, -1, dtype=np.int32), TensorType((size,), int32))
    if x.known is not None:
        return known(np.flip(x.known, dim), x.type)
    order = (dim, *(d for d in range(rank) if d != dim))

    def write(value, ids):  # type: ignore[no-untyped-def]
        b = site.b
        moved = b.transpose(value, order)
        rows = b.reshape(b.take_rows(b.reshape(moved, (size, value.type.size // size)), ids), moved.shape)
        return b.transpose(rows, tuple(np.argsort(order).tolist()))

    found: TracedValue = site.written(write, x, ids, kinds=[x.type])
    return found


@lowers("stablehlo.get_dimension_size")
def get_dimension_size(site: OpSite) -> TracedValue:
    """Known, as all shapes are."""
    size = site.operands[0].shape[mlir.int_(site.raw, "dimension")]
    return known(np.array(size, np.int32), site.type)


@lowers("stablehlo.set_dimension_size")
def set_dimension_size(site: OpSite) -> TracedValue:
    """The operand, where the size is the whole of it; else its shape depends on values."""
    x, size = site.operands
    if size.known is None or int(size.known) != x.shape[mlir.int_(site.raw, "dimension")]:
        raise UnsupportedForm(
            "the size of its result depends on values", "keep the shape, and mask what is not meant", "TRN233"
        )
    return x


@lowers("stablehlo.optimization_barrier")
def optimization_barrier(site: OpSite) -> list[TracedValue]:
    """The operands, each behind a barrier of its own: what `jax.checkpoint` computes again reads through these, and
    is not merged with the first time. Numbers that are known, or in 64 bits, need nothing that would be kept."""
    return [x if x.known is not None or x.is_wide else site.op("optimization_barrier", x) for x in site.operands]


@lowers("mhlo.copy", "sdy.sharding_constraint", "stablehlo.copy")
def identity(site: OpSite) -> list[TracedValue]:
    """The operands themselves: the order of ops is the compiler's here."""
    return site.operands
