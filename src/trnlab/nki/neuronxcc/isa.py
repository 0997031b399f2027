# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki.isa: instructions that return tiles, over the same instructions as nki.isa.

A mask bounds what is computed; the rest of the result is not written.

Source: how kernels of aws-neuron/nki-samples (3a99c91) and tests of aws-neuron/aws-neuron-sdk (nki/test) call them.
"""

from __future__ import annotations

from math import prod
from typing import Any

from trnlab.isa.base import Memory
from trnlab.lang import compose
from trnlab.lang import instructions as ins
from trnlab.lang.compose import FLOAT32
from trnlab.lang.recorder import current
from trnlab.lang.tensor import Region, Tensor, refuse
from trnlab.nki import isa as new
from trnlab.nki.enums import chip_engine, dge_mode, engine, nc_version, oob_mode, reduce_cmd
from trnlab.nki.isa import get_nc_version
from trnlab.nki.neuronxcc.affine import Affine, Mask
from trnlab.nki.neuronxcc.tile import trimmed

__all__ = ["dge_mode", "engine", "get_nc_version", "nc_version", "oob_mode", "reduce_cmd"]

unknown_engine, tensor_engine, vector_engine = engine.unknown, engine.tensor, engine.vector
scalar_engine, gpsimd_engine, dma_engine, sync_engine = engine.scalar, engine.gpsimd, engine.dma, engine.sync
_Any = engine.unknown


def _tile(shape: tuple[int, ...], dtype: Any, region: Region = Region.sbuf) -> Tensor:
    return current().tensor(shape, dtype, region)


def _column(operand: Any) -> Any:
    """A per-partition operand in the format that the engines take."""
    if not isinstance(operand, Tensor):
        return operand
    return operand if operand.format == FLOAT32 else compose.copy(operand, FLOAT32)


def nc_matmul(
    stationary: Tensor, moving: Tensor, *, is_stationary_onezero: bool = False, is_moving_onezero: bool = False,
    is_transpose: bool = False, tile_position: Any = (), tile_size: Any = (), mask: Any = None, **options: Any,
) -> Tensor:  # fmt: skip
    """stationary.T @ moving in PSUM; an operand that lies there is copied to SBUF first."""
    stationary, moving = compose.in_sbuf(stationary), compose.in_sbuf(moving)
    perf = options.get("perf_mode")
    columns = stationary.shape[2:] if perf else stationary.shape[1:]
    rows = moving.shape[2:] if perf else moving.shape[1:]
    out = _tile((prod(columns), *rows), FLOAT32, Region.psum)
    parts = trimmed(mask, out, stationary, moving)
    if parts:
        new.nc_matmul(parts[0], parts[1], parts[2], accumulate=False, perf_mode=perf)
    return out


def nc_transpose(data: Tensor, *, mask: Any = None, dtype: Any = None, engine: engine = _Any, **_: Any) -> Tensor:
    """Partition and free dimension swapped: in PSUM from the tensor engine, in SBUF from the vector engine."""
    return compose.transpose(data, dtype, chip_engine(engine))


def activation(
    op: Any, data: Tensor, *, bias: Any = None, scale: Any = 1.0, reduce_op: Any = None,
    reduce_res: Tensor | None = None, reduce_cmd: Any = reduce_cmd.idle, dtype: Any = None, mask: Any = None,
    **_: Any,
) -> Tensor:  # fmt: skip
    """op(data * scale + bias)."""
    out = _tile(data.shape, dtype or data.format)
    parts = trimmed(mask, out, data, bias, _column(scale))
    if parts:
        new.activation(parts[0], op, parts[1], parts[2], parts[3], reduce_op, reduce_res, reduce_cmd)
    return out


def activation_reduce(
    op: Any, data: Tensor, *, reduce_op: Any, reduce_res: Tensor, bias: Any = None, scale: Any = 1.0,
    dtype: Any = None, mask: Any = None, **_: Any,
) -> Tensor:  # fmt: skip
    """An activation that also sums each row."""
    return activation(
        op, data, bias=bias, scale=scale, reduce_op=reduce_op, reduce_res=reduce_res,
        reduce_cmd=reduce_cmd.reset_reduce, dtype=dtype, mask=mask,
    )  # fmt: skip


def tensor_copy(src: Tensor, *, mask: Any = None, dtype: Any = None, engine: engine = _Any, **_: Any) -> Tensor:
    """A copy in SBUF."""
    out = _tile(src.shape, dtype or src.format)
    parts = trimmed(mask, out, src)
    if parts:
        new.tensor_copy(parts[0], parts[1], engine)
    return out


def tensor_copy_predicated(*, src: Any, dst: Tensor, predicate: Tensor, mask: Any = None, **options: Any) -> None:
    """dst = src where the predicate is not zero."""
    parts = trimmed(mask, dst, src, predicate)
    if parts:
        new.tensor_copy_predicated(parts[0], parts[1], parts[2], options.get("reverse_pred", False))


def tensor_tensor(
    data1: Tensor, data2: Tensor, op: Any, *, dtype: Any = None, mask: Any = None, engine: engine = _Any, **_: Any
) -> Tensor:
    """data1 op data2."""
    shape = compose.broadcast_shape(data1.shape, data2.shape)
    out = _tile(shape, dtype or compose.promoted(data1.format, data2.format))
    parts = trimmed(mask, out, compose.broadcast_to(data1, shape), compose.broadcast_to(data2, shape))
    if parts:
        _, one, two = parts
        both = all(t.storage.region.memory is Memory.PSUM for t in (one, two))
        new.tensor_tensor(parts[0], one, compose.copy(two) if both else two, op, engine)
    return out


def tensor_scalar(
    data: Tensor, op0: Any, operand0: Any, reverse0: bool = False, op1: Any = None, operand1: Any = None,
    reverse1: bool = False, *, dtype: Any = None, mask: Any = None, engine: engine = _Any, **_: Any,
) -> Tensor:  # fmt: skip
    """(data op0 operand0) op1 operand1."""
    out = _tile(data.shape, dtype or data.format)
    parts = trimmed(mask, out, data, _column(operand0), _column(operand1))
    if parts:
        new.tensor_scalar(
            parts[0], parts[1], op0, parts[2], reverse0, op1 or None, parts[3] if op1 else None, reverse1, engine
        )
    return out


def scalar_tensor_tensor(
    *, data: Tensor, op0: Any, operand0: Any, op1: Any, operand1: Tensor, reverse0: bool = False,
    reverse1: bool = False, dtype: Any = None, mask: Any = None, **_: Any,
) -> Tensor:  # fmt: skip
    """(data op0 operand0) op1 operand1, operand1 a tile."""
    out = _tile(data.shape, dtype or data.format)
    parts = trimmed(mask, out, data, _column(operand0), operand1)
    if parts:
        new.scalar_tensor_tensor(parts[0], parts[1], op0, parts[2], op1, parts[3], reverse0, reverse1)
    return out


def tensor_scalar_reduce(
    *, data: Tensor, op0: Any, operand0: Any, reduce_op: Any, reduce_res: Tensor, reverse0: bool = False,
    dtype: Any = None, mask: Any = None, **_: Any,
) -> Tensor:  # fmt: skip
    """data op0 operand0, and the fold of each row."""
    out = _tile(data.shape, dtype or data.format)
    parts = trimmed(mask, out, data, _column(operand0), reduce_res)
    if parts:
        new.tensor_scalar_reduce(parts[0], parts[1], op0, parts[2], reduce_op, parts[3], reverse0)
    return out


def tensor_reduce(
    op: Any, data: Tensor, axis: Any, *, mask: Any = None, dtype: Any = None, negate: bool = False,
    keepdims: bool = False, **_: Any,
) -> Tensor:  # fmt: skip
    """Fold free dimensions."""
    from trnlab.nki.operators import alu_name

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
    _, _, axes = compose.reduced(data, axis)
    out = _tile(compose.kept(data, axes, keepdims), dtype or data.format)
    parts = trimmed(mask, data)
    if parts is None:
        return out
    part = parts[0]
    shape = compose.kept(part, axes, keepdims)
    compose.reduction(op, part, axis, negate=negate, dst=out._like(shape, out.strides), keepdims=keepdims)
    return out


def tensor_partition_reduce(op: Any, data: Tensor, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """Fold the partitions."""
    out = _tile((1, *data.shape[1:]), dtype or data.format)
    new.tensor_partition_reduce(out, op, data)
    return out


def tensor_tensor_scan(
    data0: Tensor, data1: Tensor, initial: Any, op0: Any, op1: Any, reverse0: bool = False, reverse1: bool = False,
    *, dtype: Any = None, mask: Any = None, **_: Any,
) -> Tensor:  # fmt: skip
    """r[i] = (data0[i] op0 r[i - 1]) op1 data1[i]."""
    shape = compose.broadcast_shape(data0.shape, data1.shape)
    out = _tile(shape, dtype or compose.promoted(data0.format, data1.format))
    parts = trimmed(
        mask, out, compose.broadcast_to(data0, shape), compose.broadcast_to(data1, shape), _column(initial)
    )
    if parts:
        new.tensor_tensor_scan(parts[0], parts[1], parts[2], parts[3], op0, op1, reverse0, reverse1)
    return out


def reciprocal(data: Tensor, *, dtype: Any = None, mask: Any = None, **_: Any) -> Tensor:
    """1 / data."""
    out = _tile(data.shape, dtype or data.format)
    parts = trimmed(mask, out, data)
    if parts:
        new.reciprocal(parts[0], parts[1])
    return out


def iota(expr: Affine, dtype: Any, *, mask: Any = None, **_: Any) -> Tensor:
    """The values of an index expression."""
    shape = expr.extents if len(expr.extents) > 1 else (1, *expr.extents)
    lead, *free = expr.coefficients if len(expr.extents) > 1 else (0, *expr.coefficients)
    out = _tile(shape, dtype)
    new.iota(out, list(zip(free, shape[1:])), expr.constant, lead)
    return out


def affine_select(
    pred: Mask, on_true_tile: Tensor, on_false_value: float, *, mask: Any = None, dtype: Any = None, **_: Any
) -> Tensor:
    """on_true where the predicate over the indices holds."""
    out = _tile(on_true_tile.shape, dtype or on_true_tile.format)
    if mask is False:
        return out
    if len(pred.terms) != 1 or (mask is not None and not isinstance(mask, bool)):
        refuse("affine_select takes one comparison", limit="i op j", got=pred, remedy="select twice", code="TRN411")
    expression, compare = pred.terms[0]
    shape = on_true_tile.shape
    pad = (0,) * (len(shape) - len(expression.coefficients))
    lead, *free = (*pad, *expression.coefficients)
    pattern = list(zip(free, shape[1:]))
    new.affine_select(out, pattern, lead, compose.in_sbuf(on_true_tile), on_false_value, compare, expression.constant)
    return out


def range_select(
    *, on_true_tile: Tensor, comp_op0: Any, comp_op1: Any, bound0: Tensor, bound1: Tensor,
    reduce_cmd: Any = reduce_cmd.idle, reduce_res: Tensor | None = None, reduce_op: Any = "max", range_start: Any = 0,
    on_false_value: Any = None, dtype: Any = None, mask: Any = None, **_: Any,
) -> Tensor:  # fmt: skip
    """Keep the elements whose index lies between two bounds."""
    out = _tile(on_true_tile.shape, dtype or on_true_tile.format)
    new.range_select(
        out, on_true_tile, comp_op0, comp_op1, bound0, bound1, reduce_cmd, reduce_res, reduce_op, range_start
    )
    return out


def select_reduce(dst: Tensor, predicate: Tensor, on_true: Tensor, on_false: Any, **options: Any) -> None:
    """As in the new dialect."""
    wanted = {k: v for k, v in options.items() if k not in ("mask", "dtype", "name")}
    new.select_reduce(dst, predicate, on_true, on_false, **wanted)


def tensor_scalar_cumulative(dst: Tensor, src: Tensor, op0: Any, op1: Any, imm0: Any, **options: Any) -> None:
    """As in the new dialect."""
    wanted = {k: v for k, v in options.items() if k not in ("mask", "dtype", "name")}
    new.tensor_scalar_cumulative(dst, src, op0, op1, imm0, **wanted)


def memset(shape: Any, value: Any, dtype: Any, *, mask: Any = None, engine: engine = _Any, **_: Any) -> Tensor:
    """A tile of one value."""
    out = _tile(tuple(int(s) for s in shape), dtype)
    parts = trimmed(mask, out)
    if parts:
        compose.fill(parts[0], value)
    return out


def dma_copy(*, dst: Tensor, src: Tensor, mask: Any = None, dst_rmw_op: Any = None, **_: Any) -> None:
    """Move elements between HBM and SBUF."""
    if dst_rmw_op is not None:
        refuse("a transfer that adds to what it overwrites is not simulated yet", limit="dst_rmw_op=None",
               got=dst_rmw_op, remedy="load, add and store", code="TRN414")  # fmt: skip
    parts = trimmed(mask, dst, src)
    if parts:
        ins.dma_copy(parts[0], parts[1])


def dma_transpose(src: Tensor, *, axes: Any = None, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """The transpose, moved by DMA into SBUF."""
    order = tuple(axes) if axes else {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[src.ndim]
    out = _tile(tuple(src.shape[a] for a in order), dtype or src.format)
    new.dma_transpose(out, src, order)
    return out


def max8(*, src: Tensor, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """The eight largest of each partition, descending."""
    out = _tile((src.shape[0], 8), dtype or src.format)
    new.max8(out, src)
    return out


def nc_find_index8(*, data: Tensor, vals: Tensor, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """Where eight values occur first."""
    out = _tile((data.shape[0], 8), dtype or "uint32")
    new.nc_find_index8(out, data, vals)
    return out


def nc_match_replace8(*, data: Tensor, vals: Tensor, imm: float, dst_idx: Any = None, **options: Any) -> Tensor:
    """Replace the first occurrence of each of eight values."""
    out = _tile(data.shape, options.get("dtype") or data.format)
    new.nc_match_replace8(out, data, vals, imm, dst_idx)
    return out


def bn_stats(data: Tensor, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """Count, mean and variance * count of the even and the odd elements."""
    parts = trimmed(mask, data)
    out = _tile((data.shape[0], 6), dtype or FLOAT32)
    if parts:
        new.bn_stats(out[0 : parts[0].shape[0]], parts[0])
    return out


def bn_aggr(data: Tensor, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """Mean and variance from several `bn_stats`."""
    parts = trimmed(mask, data)
    out = _tile((data.shape[0], 2), dtype or FLOAT32)
    if parts:
        new.bn_aggr(out[0 : parts[0].shape[0]], parts[0])
    return out


def local_gather(
    src_buffer: Tensor, index: Tensor, num_elem_per_idx: int = 1, num_valid_indices: Any = None, **_: Any
) -> Tensor:
    """Each GpSimd core gathers along the free dimension for its 16 partitions."""
    count = num_valid_indices or index.shape[1] * 16
    out = _tile((src_buffer.shape[0], count, num_elem_per_idx), src_buffer.format)
    new.local_gather(out, src_buffer, index, num_elem_per_idx, num_valid_indices)
    return out


def nc_stream_shuffle(src: Tensor, dst: Tensor, shuffle_mask: Any, **_: Any) -> None:
    """Shuffle partitions within each 32."""
    new.nc_stream_shuffle(dst, src, shuffle_mask)


def dropout(data: Tensor, prob: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """Zero each element with probability `prob`."""
    out = _tile(data.shape, dtype or data.format)
    new.dropout(out, data, _column(prob))
    return out


def sequence_bounds(*, segment_ids: Tensor, dtype: Any = None, **_: Any) -> Tensor:
    """Start and end of each element's segment."""
    out = _tile((1, 2, *segment_ids.shape[1:]), dtype or segment_ids.format)
    new.sequence_bounds(out, segment_ids)
    return out
