# SPDX-License-Identifier: Apache-2.0
"""Instructions of the older nki.isa that reduce along the free dimensions or over partitions."""

from __future__ import annotations

from typing import Any

from trnlab.lang import compose
from trnlab.lang.compose import FLOAT32
from trnlab.lang.tensor import Tensor
from trnlab.nki import isa as new
from trnlab.nki.neuronxcc.defined import Box, defined, record
from trnlab.nki.neuronxcc.elementwise import computed, result, row_result
from trnlab.nki.neuronxcc.masked import boxed, cut, rows_of
from trnlab.nki.neuronxcc.zeros import settle
from trnlab.nki.operators import alu_name


def tensor_reduce(
    op: Any,
    data: Tensor,
    axis: Any,
    *,
    mask: Any = None,
    dtype: Any = None,
    negate: bool = False,
    keepdims: bool = False,
    **_: Any,
) -> Tensor:
    """Fold free dimensions."""
    return reduce(alu_name(op), data, axis, dtype, mask, keepdims, negate)


def reduce(
    op: str,
    data: Tensor,
    axis: Any,
    dtype: Any = None,
    mask: Any = None,
    keepdims: bool = False,
    negate: bool = False,
) -> Tensor:
    """Fold free dimensions of what the mask leaves."""
    axes = compose.reduced_axes(data.ndim, axis)
    out = result(compose.kept(data, axes, keepdims), dtype or data.format)
    settle(data)
    box: Box = {a: edges for a, edges in defined(data).items() if a not in axes}
    box |= boxed(mask, data.shape)
    if not box:
        compose.reduction(op, data, axes, negate=negate, dst=out, keepdims=keepdims)
        record(out, box)
        return out
    if any(low >= high for low, high in box.values()):
        return out
    kept = [a for a in range(data.ndim) if keepdims or a not in axes]
    into = {kept.index(a): edges for a, edges in box.items() if a not in axes}
    compose.reduction(op, cut(data, box), axis, negate=negate, dst=cut(out, into), keepdims=keepdims)
    record(out, into)
    return out


def tensor_partition_reduce(op: Any, data: Tensor, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """Fold the partitions of what the mask leaves."""
    out = result((1, *data.shape[1:]), dtype or data.format)
    box = {**defined(data), **boxed(mask, data.shape)}
    if not any(low >= high for low, high in box.values()):
        into = {a: edges for a, edges in box.items() if a}
        new.tensor_partition_reduce(cut(out, into), op, cut(data, box))
        record(out, into)
    return out


def max8(*, src: Tensor, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """The eight largest of each partition, descending."""
    return row_result(src, mask, (src.shape[0], 8), dtype or src.format, lambda out, src, _box: new.max8(out, src))


def nc_find_index8(*, data: Tensor, vals: Tensor, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """Where eight values occur first. A mask applies to data."""
    return row_result(
        data,
        mask,
        (data.shape[0], 8),
        dtype or "uint32",
        lambda out, data, box: new.nc_find_index8(out, data, cut(vals, rows_of(box))),
    )


def nc_match_replace8(
    *,
    data: Tensor,
    vals: Tensor,
    imm: float,
    dst_idx: Tensor | None = None,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Tensor:
    """data with the first occurrence of each of eight values replaced. A mask applies to data."""

    def emit(out: Tensor, data: Tensor) -> None:
        rows = rows_of(box)
        places = None if dst_idx is None else cut(dst_idx, rows)
        new.nc_match_replace8(out, data, cut(vals, rows), float(imm), places)

    box = boxed(mask, data.shape)
    return computed(data.shape, dtype or data.format, mask, (data,), emit)


def bn_stats(data: Tensor, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """Count, mean and variance * count of the even and the odd elements."""
    return row_result(
        data, mask, (data.shape[0], 6), dtype or FLOAT32, lambda out, data, _box: new.bn_stats(out, data)
    )
