# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki.isa: instructions that return tiles, over the same instructions as nki.isa.

A mask bounds what is computed; the rest of the result is not written. `**options` of the functions steer the vendor's
compiler only (names, priorities) and change nothing.

Source: nki.isa of the 2.2x documentation of aws-neuron-sdk, the kernels of aws-neuron/nki-samples (3a99c91) and the
tests of aws-neuron/aws-neuron-sdk (nki/test).
"""

from __future__ import annotations

import sys
from math import prod
from typing import Any

from trnlab.isa import REGISTRY
from trnlab.isa.base import Memory
from trnlab.lang import compose
from trnlab.lang import instructions as ins
from trnlab.lang.compose import FLOAT32
from trnlab.lang.formats import format_of
from trnlab.lang.recorder import current
from trnlab.lang.storage import MemorySpace, refuse
from trnlab.lang.tensor import Tensor
from trnlab.nki import isa as new
from trnlab.nki.declared import is_declared
from trnlab.nki.enums import chip_engine, dge_mode, engine, nc_version, oob_mode, reduce_cmd
from trnlab.nki.isa import get_nc_version
from trnlab.nki.neuronxcc import declared
from trnlab.nki.neuronxcc.affine import Affine, Mask
from trnlab.nki.neuronxcc.defined import defined, record
from trnlab.nki.neuronxcc.elementwise import (
    binary_result,
    column,
    computed,
    copied,
    not_both_psum,
    result,
    same_rank,
)
from trnlab.nki.neuronxcc.instructions.reductions import bn_stats as bn_stats
from trnlab.nki.neuronxcc.instructions.reductions import max8 as max8
from trnlab.nki.neuronxcc.instructions.reductions import nc_find_index8 as nc_find_index8
from trnlab.nki.neuronxcc.instructions.reductions import nc_match_replace8 as nc_match_replace8
from trnlab.nki.neuronxcc.instructions.reductions import reduce as reduce
from trnlab.nki.neuronxcc.instructions.reductions import tensor_partition_reduce as tensor_partition_reduce
from trnlab.nki.neuronxcc.instructions.reductions import tensor_reduce as tensor_reduce
from trnlab.nki.neuronxcc.instructions.transfers import accumulated as accumulated
from trnlab.nki.neuronxcc.instructions.transfers import dma_copy as dma_copy
from trnlab.nki.neuronxcc.instructions.transfers import dma_transpose as dma_transpose
from trnlab.nki.neuronxcc.instructions.transfers import local_gather as local_gather
from trnlab.nki.neuronxcc.instructions.transfers import nc_stream_shuffle as nc_stream_shuffle
from trnlab.nki.neuronxcc.instructions.transfers import sequence_bounds as sequence_bounds
from trnlab.nki.neuronxcc.masked import boxed, cut, rows_of, trimmed
from trnlab.nki.neuronxcc.zeros import settle
from trnlab.nki.operators import alu_name

__all__ = ["dge_mode", "engine", "get_nc_version", "nc_version", "oob_mode", "reduce_cmd"]

unknown_engine, tensor_engine, vector_engine = engine.unknown, engine.tensor, engine.vector
scalar_engine, gpsimd_engine, dma_engine, sync_engine = engine.scalar, engine.gpsimd, engine.dma, engine.sync
_Any, _IDLE, _RESET = engine.unknown, reduce_cmd.idle, reduce_cmd.reset_reduce


# -- the PE array -------------------------------------------------------------------------------------------------
def nc_matmul(
    stationary: Tensor,
    moving: Tensor,
    *,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    tile_position: Any = (),
    tile_size: Any = (),
    mask: Any = None,
    perf_mode: Any = None,
    **options: Any,
) -> Tensor:
    """stationary.T @ moving in PSUM; an operand that lies there is copied to SBUF first.

    A mask bounds the contraction: both operands are cut along the partition. To bound a free dimension, index the
    operand with a mask.
    """
    for operand in (stationary, moving):
        settle(operand)
    box = boxed(mask, stationary.shape)
    rows = rows_of(box)
    stationary, moving = (
        t if t.storage.region.memory is Memory.SBUF else copied(t) for t in (cut(stationary, rows), cut(moving, rows))
    )
    skip = 2 if perf_mode else 1
    moves = is_transpose and current().chip.has("pe_transpose")  # data unchanged, in their own format
    fmt = stationary.format if moves else FLOAT32
    out = result((prod(stationary.shape[skip:]), *moving.shape[skip:]), fmt, MemorySpace.psum)
    if not any(low >= high for low, high in box.values()):
        _product(
            out,
            stationary,
            moving,
            perf_mode,
            {
                "is_stationary_onezero": is_stationary_onezero,
                "is_moving_onezero": is_moving_onezero,
                "is_transpose": is_transpose,
                "tile_position": tile_position,
                "tile_size": tile_size,
            },
        )
    return out


def _product(out: Tensor, stationary: Tensor, moving: Tensor, perf_mode: Any, options: dict[str, Any]) -> None:
    """Only the rows and columns that come from what is defined of the operands' free dimensions."""
    box: dict[int, tuple[int, int]] = {}
    left, right = defined(stationary), defined(moving)
    if any(low >= high for side in (left, right) for low, high in side.values()):
        return
    if not perf_mode:
        if stationary.ndim == 2 and 1 in left:
            box[0], stationary = left[1], cut(stationary, {1: left[1]})
        if 1 in right:
            box[1], moving = right[1], cut(moving, {1: right[1]})
    if any(low >= high for low, high in box.values()):
        return
    part = cut(out, box)
    new.nc_matmul(part, stationary, moving, accumulate=False, perf_mode=perf_mode, **options)
    record(out, box)


def nc_transpose(data: Tensor, *, mask: Any = None, dtype: Any = None, engine: engine = _Any, **_: Any) -> Tensor:
    """Partition and free dimension swapped: in PSUM from the tensor engine, in SBUF from the vector engine."""
    settle(data)
    box = {**defined(data), **boxed(mask, data.shape)} if data.ndim == 2 else {}
    if not box:
        return compose.transpose(data, dtype, chip_engine(engine))
    out = result((data.shape[1], data.shape[0]), dtype or data.format, MemorySpace.psum)
    if not any(low >= high for low, high in box.values()):
        swapped = {1 - axis: edges for axis, edges in box.items()}
        small = compose.transpose(cut(data, box), dtype, chip_engine(engine))
        compose.copy(small, dst=cut(out, swapped))
        record(out, swapped)
    return out


# -- ScalarE ------------------------------------------------------------------------------------------------------
def activation(
    op: Any,
    data: Tensor,
    *,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Tensor | None = None,
    reduce_cmd: Any = _IDLE,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Tensor:
    """op(data * scale + bias)."""

    def emit(out: Tensor, data: Tensor, bias: Any, scale: Any, reduced: Any) -> None:
        new.activation(out, op, data, bias, scale, reduce_op, reduced, reduce_cmd)

    return computed(data.shape, dtype or data.format, mask, (data, bias, column(scale), reduce_res), emit)


def activation_reduce(
    op: Any,
    data: Tensor,
    *,
    reduce_op: Any,
    reduce_res: Tensor,
    bias: Any = None,
    scale: Any = 1.0,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Tensor:
    """An activation that also sums each row."""
    return activation(
        op,
        data,
        bias=bias,
        scale=scale,
        reduce_op=reduce_op,
        reduce_res=reduce_res,
        reduce_cmd=_RESET,
        dtype=dtype,
        mask=mask,
    )


# -- element by element ---------------------------------------------------------------------------------------------
def tensor_copy(src: Tensor, *, mask: Any = None, dtype: Any = None, engine: engine = _Any, **_: Any) -> Tensor:
    """A copy in SBUF."""

    def emit(out: Tensor, src: Tensor) -> None:
        new.tensor_copy(out, src, engine)

    return computed(src.shape, dtype or src.format, mask, (src,), emit)


def tensor_copy_dynamic_src(
    src: Tensor, *, mask: Any = None, dtype: Any = None, engine: engine = _Any, **_: Any
) -> Tensor:
    """A copy of a tile whose place within its partitions is known only at run time: src[i_p, offset + i_f]."""
    return tensor_copy(src, mask=mask, dtype=dtype, engine=engine)


def tensor_copy_dynamic_dst(
    *, dst: Tensor, src: Tensor, mask: Any = None, dtype: Any = None, engine: engine = _Any, **_: Any
) -> None:
    """A copy to a place within the partitions that is known only at run time."""
    parts = trimmed(mask, dst, src)
    if parts:
        new.tensor_copy(parts[0], parts[1], engine)


def tensor_copy_predicated(
    *,
    src: Any,
    dst: Tensor,
    predicate: Tensor,
    reverse_pred: bool = False,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> None:
    """dst = src where the predicate is not zero."""
    parts = trimmed(mask, dst, src, predicate)
    if parts:
        if isinstance(parts[1], Tensor):
            parts[2] = not_both_psum(parts[1], parts[2])
        new.tensor_copy_predicated(parts[0], parts[1], parts[2], reverse_pred)


def tensor_tensor(
    data1: Tensor, data2: Tensor, op: Any, *, dtype: Any = None, mask: Any = None, engine: engine = _Any, **_: Any
) -> Tensor:
    """data1 op data2."""

    name = alu_name(op)

    def emit(out: Tensor, one: Tensor, two: Tensor) -> None:
        one, two = compose.broadcast_to(one, out.shape), compose.broadcast_to(two, out.shape)
        ins.tensor_tensor(out, one, not_both_psum(one, two), name, chip_engine(engine))

    data1, data2 = same_rank(data1, data2)
    shape, fmt = binary_result(data1, data2, name, dtype)
    return computed(shape, fmt, mask, (data1, data2), emit)


def tensor_scalar(
    data: Tensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: engine = _Any,
    **_: Any,
) -> Tensor:
    """(data op0 operand0) op1 operand1."""

    def emit(out: Tensor, data: Tensor, operand0: Any, operand1: Any) -> None:
        new.tensor_scalar(out, data, op0, operand0, reverse0, op1, operand1 if op1 else None, reverse1, engine)

    return computed(data.shape, dtype or data.format, mask, (data, column(operand0), column(operand1)), emit)


def scalar_tensor_tensor(
    *,
    data: Tensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Tensor,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Tensor:
    """(data op0 operand0) op1 operand1, operand1 a tile."""

    def emit(out: Tensor, data: Tensor, operand0: Any, operand1: Tensor) -> None:
        new.scalar_tensor_tensor(out, data, op0, operand0, op1, not_both_psum(data, operand1), reverse0, reverse1)

    return computed(data.shape, dtype or data.format, mask, (data, column(operand0), operand1), emit)


def tensor_scalar_reduce(
    *,
    data: Tensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Tensor,
    reverse0: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Tensor:
    """data op0 operand0, and the fold of each row."""

    def emit(out: Tensor, data: Tensor, operand0: Any, reduced: Tensor) -> None:
        new.tensor_scalar_reduce(out, data, op0, operand0, reduce_op, reduced, reverse0)

    return computed(data.shape, dtype or data.format, mask, (data, column(operand0), reduce_res), emit)


def tensor_tensor_scan(
    data0: Tensor,
    data1: Tensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    **_: Any,
) -> Tensor:
    """r[i] = (data0[i] op0 r[i - 1]) op1 data1[i]."""

    def emit(out: Tensor, one: Tensor, two: Tensor, initial: Any) -> None:
        one, two = (compose.broadcast_to(t, out.shape) for t in (one, two))
        new.tensor_tensor_scan(out, one, not_both_psum(one, two), initial, op0, op1, reverse0, reverse1)

    shape, fmt = binary_result(data0, data1, "add", dtype)
    return computed(shape, fmt, mask, (data0, data1, column(initial)), emit)


def dropout(data: Tensor, prob: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """Zero each element with probability `prob`."""
    return computed(data.shape, dtype or data.format, mask, (data, column(prob)), new.dropout)


def select_reduce(
    *,
    dst: Tensor,
    predicate: Tensor,
    on_true: Tensor,
    on_false: Any,
    reduce_res: Tensor | None = None,
    reduce_cmd: Any = _IDLE,
    reduce_op: Any = "max",
    reverse_pred: bool = False,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> None:
    """on_true where the predicate is not zero, and the maximum of each row."""
    parts = trimmed(mask, dst, predicate, on_true, on_false, reduce_res)
    if parts:
        dst, predicate, on_true, on_false, reduce_res = parts
        new.select_reduce(dst, predicate, on_true, on_false, reduce_res, reduce_cmd, reduce_op, reverse_pred)


def range_select(
    *,
    on_true_tile: Tensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Tensor,
    bound1: Tensor,
    reduce_cmd: Any = _IDLE,
    reduce_res: Tensor | None = None,
    reduce_op: Any = "max",
    range_start: Any = 0,
    on_false_value: Any = None,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Tensor:
    """Keep the elements whose index lies between two bounds."""

    def emit(out: Tensor, data: Tensor, low: Tensor, high: Tensor, reduced: Any) -> None:
        new.range_select(
            out, data, comp_op0, comp_op1, low, high, reduce_cmd, reduced, reduce_op, range_start, **fill
        )

    fill = {} if on_false_value is None else {"on_false_value": on_false_value}
    inputs = (on_true_tile, bound0, bound1, reduce_res)
    return computed(on_true_tile.shape, dtype or on_true_tile.format, mask, inputs, emit)


def tensor_scalar_cumulative(
    *,
    dst: Tensor,
    src: Tensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = _RESET,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> None:
    """A running fold with op1 over (src op0 imm0)."""
    parts = trimmed(mask, dst, src)
    if parts:
        new.tensor_scalar_cumulative(parts[0], parts[1], op0, op1, column(imm0), column(imm1), reduce_cmd)


# -- reductions ---------------------------------------------------------------------------------------------------


# -- constants and selections ---------------------------------------------------------------------------------------
def memset(shape: Any, value: Any, dtype: Any, *, mask: Any = None, engine: engine = _Any, **_: Any) -> Tensor:
    """A tile of one value."""

    def emit(out: Tensor) -> None:
        new.memset(out, int(value) if format_of(dtype).dtype.kind in "iu" else float(value), engine)

    return computed(tuple(int(s) for s in shape), dtype, mask, (), emit)


def iota(expr: Any, dtype: Any, *, mask: Any = None, **_: Any) -> Tensor:
    """The values of an index expression; of an integer, one element."""
    if not isinstance(expr, Affine):
        return memset((1, 1), expr, dtype, mask=mask)
    pad = (1,) if len(expr.extents) == 1 else ()
    shape, steps = (*pad, *expr.extents), (*(0 for _ in pad), *expr.coefficients)
    out = result(shape, dtype)
    box = boxed(mask, shape)
    if any(low >= high for low, high in box.values()):
        return out
    part = cut(out, box)
    start = expr.constant + sum(steps[axis] * low for axis, (low, _) in box.items())
    new.iota(part, list(zip(steps[1:], part.shape[1:])), start, steps[0])
    record(out, box)
    return out


def affine_select(
    pred: Any, on_true_tile: Tensor, on_false_value: Any, *, mask: Any = None, dtype: Any = None, **_: Any
) -> Tensor:
    """on_true where all comparisons of the predicate over the indices hold. It is known where it does not vary."""
    if not isinstance(pred, Mask):
        data = compose.filled(on_true_tile.shape, on_false_value, on_true_tile.format) if not pred else on_true_tile
        return tensor_copy(data, dtype=dtype, mask=mask)
    data = on_true_tile
    for expression, compare in pred.terms:
        data = _selected(expression, compare, data, on_false_value, mask, dtype)
    return data


def _selected(expression: Affine, compare: str, data: Tensor, on_false: Any, mask: Any, dtype: Any) -> Tensor:
    pad = data.ndim - len(expression.coefficients)
    if pad < 0:
        refuse(
            "the predicate has more axes than the tile",
            limit=data.ndim,
            got=len(expression.coefficients),
            remedy="compare index expressions of the tile's own axes",
            code="TRN411",
        )
    steps = ((0,) * pad + expression.coefficients) if pad else expression.coefficients
    settle(data)
    out = result(data.shape, dtype or data.format)
    parts = trimmed(mask, out, data)
    if parts:
        box = boxed(mask, data.shape)
        start = expression.constant + sum(steps[axis] * low for axis, (low, _) in box.items())
        pattern = list(zip(steps[1:], parts[0].shape[1:]))
        new.affine_select(parts[0], pattern, steps[0], compose.in_sbuf(parts[1]), on_false, compare, start)
    return out


# -- data movement --------------------------------------------------------------------------------------------------


# -- instructions that are called as they are declared ---------------------------------------------------------------
def __getattr__(name: str) -> Any:
    """The function of an instruction whose function of nki.isa is made from its declaration as well.

    Raises AttributeError for any other name.
    """
    if name not in REGISTRY or not is_declared(getattr(new, name, None)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    return globals().setdefault(name, declared.function(REGISTRY[name], getattr(new, name), __name__))


for _name in REGISTRY:
    if _name not in globals() and is_declared(getattr(new, _name, None)):
        __getattr__(_name)
