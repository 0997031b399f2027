# SPDX-License-Identifier: Apache-2.0
"""Operations of the kernel language that are one or a few instructions: elementwise maths, reductions, matmul.

All take tensors on chip and return a new tile in SBUF unless told where; `dtype` defaults to the input's. Two-input
operations repeat dimensions of one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from trnlab.isa.activations import ACTIVATIONS
from trnlab.isa.alu import ALU, alu_op
from trnlab.isa.base import Engine, Memory
from trnlab.isa.products.nc_transpose import VECTOR_BLOCK
from trnlab.lang import instructions as ins
from trnlab.lang.formats import FORMATS, Format, format_of
from trnlab.lang.recorder import current
from trnlab.lang.storage import MemorySpace, refuse
from trnlab.lang.tensor import Tensor
from trnlab.lang.transfers import dma_copy, dma_transpose

FLOAT32 = FORMATS["float32"]
# To look a member up takes 200 ns in Python 3.11.
_HBM, _SBUF, _PSUM, _VECTOR, _IN_PSUM, _IN_SBUF = (
    Memory.HBM,
    Memory.SBUF,
    Memory.PSUM,
    Engine.VECTOR,
    MemorySpace.psum,
    MemorySpace.sbuf,
)
PARTITIONS = 128  # rows and columns of a block that the PE array transposes


def new(
    like: Tensor, shape: tuple[int, ...] | None = None, dtype: Any = None, region: MemorySpace = _IN_SBUF
) -> Tensor:
    """A tile like another one."""
    return current().tensor(shape or like.shape, dtype or like.format, region)


def filled(shape: Any, value: float, dtype: Any, region: MemorySpace = _IN_SBUF, name: str = "") -> Tensor:
    """A tile that holds one value everywhere; in HBM, a constant array."""
    tensor = current().tensor(shape, dtype, region, name=name)
    if region.memory is _HBM:
        current().contain(tensor, np.full(tensor.shape, value, tensor.format.dtype))
        return tensor
    fill(tensor, value)
    return tensor


def fill(dst: Tensor, value: Any) -> None:
    """One value everywhere; whole numbers stay whole in integer formats."""
    whole = format_of(dst.format).dtype.kind in "iu"
    ins.emit("memset", dst=dst, value=int(value) if whole else float(value))


def load(src: Tensor, dtype: Any = None) -> Tensor:
    """A tile in SBUF with the elements of an HBM tensor; a vector becomes one row."""
    shape = src.shape if src.ndim > 1 else (1, *src.shape)
    tile = new(src, shape, dtype)
    dma_copy(tile, src)
    return tile


def store(dst: Tensor, value: Tensor) -> None:
    """Write a tile to HBM; PSUM goes by way of SBUF, which is all that DMA reads."""
    if value.storage.region.memory is _PSUM:
        value = copy(value)
    dma_copy(dst, value)


def copy(x: Tensor, dtype: Any = None, dst: Tensor | None = None) -> Tensor:
    """A copy, cast to `dtype`."""
    x = on_chip(x)
    out = dst if dst is not None else new(x, dtype=dtype)
    ins.emit("tensor_copy", dst=out, src=x)
    return out


def in_sbuf(x: Tensor) -> Tensor:
    """The tile itself when it lies in SBUF, else a copy there."""
    x = on_chip(x)
    return x if x.storage.region.memory is _SBUF else copy(x)


def on_chip(x: Any) -> Any:
    """What an operation reads: the tile or number itself; a tensor in HBM is loaded first, with a warning.

    The documentation of nki.language has tiles there ("x: a tile or a scalar value"), while published kernels that
    are tested in the vendor's simulator of release 2.29 pass tensors in HBM too. The old dialect refuses them.
    """
    if not isinstance(x, Tensor) or x.on_chip or current().tensor_type is not Tensor:
        return x
    name = x.name or x.storage.buffer.name
    current().remark(
        f"an operation on {name!r}, which lies in HBM: it is loaded first, here and each time",
        limit="tiles in SBUF or PSUM, numbers",
        got=f"{list(x.shape)} in HBM",
        remedy="nl.load it once, before the operation",
    )
    return load(x)


# -- elementwise ------------------------------------------------------------------------------------------------
def function(name: str, x: Tensor, dtype: Any = None, dst: Tensor | None = None, **options: Any) -> Tensor:
    """An activation function of each element."""
    x = on_chip(x)
    out = dst if dst is not None else new(x, dtype=dtype)
    ins.emit("activation", dst=out, data=x, op=name, **options)
    return out


def is_function(name: str) -> bool:
    """Whether ScalarE knows the function."""
    return name in ACTIVATIONS


def binary(op: str, x: Any, y: Any, dtype: Any = None, dst: Tensor | None = None) -> Any:
    """x op y, where either may be a number, or a tile that repeats along dimensions of one element."""
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        return ALU[alu_op(op).name].function(np.float32(x), np.float32(y))
    x, y = on_chip(x), on_chip(y)
    tile = x if isinstance(x, Tensor) else y
    if _VECTOR not in alu_op(op).engines:  # power: of tiles only, on GpSimd
        x, y = (t if isinstance(t, Tensor) else _repeated(t, tile) for t in (x, y))
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        out = dst if dst is not None else new(tile, dtype=dtype)
        reverse = not isinstance(x, Tensor)
        ins.tensor_scalar(out, tile, op, y if isinstance(x, Tensor) else x, reverse0=reverse)
        return out
    shape = broadcast_shape(x.shape, y.shape)
    out = dst if dst is not None else new(tile, shape, dtype or promoted(x.format, y.format))
    for data, operand, reverse in ((x, y, False), (y, x, True)):
        if _VECTOR in alu_op(op).engines and data.shape == shape and _is_column(operand, shape):
            column = operand if operand.format == FLOAT32 else copy(operand, FLOAT32)
            ins.tensor_scalar(out, data, op, column, reverse0=reverse)
            return out
    x, y = broadcast_to(x, shape), broadcast_to(y, shape)
    if x.storage.region.memory is _PSUM and y.storage.region.memory is _PSUM:
        y = copy(y)
    if _VECTOR not in alu_op(op).engines:
        x, y = in_sbuf(x), in_sbuf(y)
    ins.tensor_tensor(out, x, y, op)
    return out


def _repeated(number: Any, like: Tensor) -> Tensor:
    """A tile of the shape of `like` that holds a number everywhere, read again and again from one column."""
    column = filled((like.shape[0], 1), float(number), FLOAT32)
    return column.ap([[1, like.shape[0]], *([0, n] for n in like.shape[1:])])


def _is_column(operand: Tensor, shape: tuple[int, ...]) -> bool:
    return operand.shape[0] == shape[0] and prod(operand.shape[1:]) == 1 and prod(shape[1:]) > 1


_FLOATS = ("float8_e5m2", "float8_e4m3", "float16", "bfloat16", "tfloat32", "float32")
_UNITED = {("float16", "bfloat16"): "float32", ("float8_e5m2", "float8_e4m3"): "bfloat16"}  # wide enough for both


def promoted(x: Format, y: Format) -> Format:
    """The format of x op y where the kernel names none: floats beat integers, wider beats narrower, and where neither
    holds the other the next wider that does. Source: "NKI Type Promotion" in nki.api.shared of aws-neuron-sdk.
    """
    if x is y or x == y:
        return x
    floats = sorted((str(f) for f in (x, y) if str(f) in _FLOATS), key=_FLOATS.index)
    if floats:
        return FORMATS[_UNITED.get((floats[0], floats[-1]), floats[-1])]
    if x.dtype.kind not in "iu" or y.dtype.kind not in "iu":
        return max(x, y, key=lambda f: f.itemsize)
    wide = np.promote_types(x.dtype, y.dtype)
    return FLOAT32 if wide.itemsize > 4 else format_of(wide)


def broadcast_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape. Raises ConstraintError when a dimension is neither equal nor one."""
    if a == b:
        return a
    if len(a) != len(b) or any(m != n and 1 not in (m, n) for m, n in zip(a, b)):
        refuse(
            "the shapes of the two inputs do not match",
            limit="equal, or one element, in every dimension",
            got=f"{list(a)} and {list(b)}",
            remedy="slice, expand_dim or reshape one of them",
        )
    return tuple(max(m, n) for m, n in zip(a, b))


def broadcast_to(x: Tensor, shape: tuple[int, ...], dtype: Any = None) -> Tensor:
    """x repeated to `shape`: free dimensions by stride zero, a single partition by a matmul with ones."""
    shape = tuple(shape)
    if dtype is not None and format_of(dtype) != x.format:
        x = copy(x, dtype)
    if x.shape == shape:
        return x
    if len(shape) != x.ndim or any(m not in (1, n) for m, n in zip(x.shape, shape)):
        refuse(
            "a dimension can only be repeated from one element",
            limit=list(x.shape),
            got=list(shape),
            remedy="expand or reshape first",
        )
    if x.shape[0] != shape[0]:
        x = _to_partitions(x, shape[0])
    strides = tuple(0 if m != n else s for m, n, s in zip(x.shape, shape, x.strides))
    return x._like(shape, strides)


def _to_partitions(x: Tensor, partitions: int) -> Tensor:
    """One row copied to many partitions: ones.T @ row, exact: integers pass as float32, 32 bits in halves."""
    row = in_sbuf(x)
    out = current().tensor((partitions, *x.shape[1:]), x.format, _IN_SBUF)
    flat, target = row.reshape(1, -1), out.reshape(partitions, -1)
    if row.format.itemsize == 4 and row.format.dtype.kind in "iu":
        flat, target = flat.view("uint16"), target.view("uint16")
    if format_of(flat.format) not in ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2"):
        flat = copy(flat, FLOAT32)
    ones = current().once(("ones", partitions, flat.format), lambda: filled((1, partitions), 1.0, flat.format))
    step = current().chip.psum.bank_bytes_per_partition // 4
    for start in range(0, flat.shape[1], step):
        stop = min(start + step, flat.shape[1])
        psum = current().tensor((partitions, stop - start), FLOAT32, _IN_PSUM)
        ins.nc_matmul(psum, ones, flat[:, start:stop], accumulate=False)
        ins.emit("tensor_copy", dst=target[:, start:stop], src=psum)
    return out


def where(condition: Tensor, x: Any, y: Any, dtype: Any = None, dst: Tensor | None = None) -> Tensor:
    """x where the condition is not zero, y elsewhere."""
    condition, x, y = on_chip(condition), on_chip(x), on_chip(y)
    tile = next((t for t in (x, y) if isinstance(t, Tensor)), condition)
    out = dst if dst is not None else new(tile, condition.shape, dtype)
    if isinstance(y, Tensor):
        ins.emit("tensor_copy", dst=out, src=broadcast_to(y, out.shape))
    else:
        fill(out, y)
    if str(condition.format) not in _PREDICATES:
        condition = binary("not_equal", condition, 0.0, dtype="uint8")
    source = broadcast_to(x, out.shape) if isinstance(x, Tensor) else float(x)
    if isinstance(source, Tensor) and source.format != out.format:
        source = copy(source, out.format)
    ins.emit("tensor_copy_predicated", dst=out, src=source, predicate=broadcast_to(condition, out.shape))
    return out


_PREDICATES = ("uint8", "uint16", "uint32", "bool")


# -- reductions -------------------------------------------------------------------------------------------------
def reduced(x: Tensor, axis: Any) -> tuple[Tensor, int, tuple[int, ...]]:
    """x with the reduced dimensions last, how many they are, and which. Raises ConstraintError for the partition."""
    axes = reduced_axes(x.ndim, axis)
    order = _axes_last(x.ndim, axes)
    return x if order is None else x.permute(order), len(axes), axes


def reduced_axes(ndim: int, axis: Any) -> tuple[int, ...]:
    """The dimensions that an axis, or several, name. Raises ConstraintError for the partition."""
    axes = _in_order(ndim, (axis,) if isinstance(axis, int) else tuple(axis))
    if not axes or axes[0] == 0:
        refuse(
            "the partition dimension cannot be reduced along",
            limit="free dimensions",
            got=axis,
            remedy="use nisa.tensor_partition_reduce, or a matmul with ones, or transpose first",
        )
    return axes


@lru_cache(maxsize=1024)
def _in_order(ndim: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(a % ndim for a in axes))


@lru_cache(maxsize=1024)
def _axes_last(ndim: int, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The order of dimensions with these last; None where they are."""
    order = tuple(d for d in range(ndim) if d not in axes) + axes
    return None if order == tuple(range(ndim)) else order


def kept(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """Shape of the result; it keeps a free dimension."""
    return _kept(x.shape, axes, keepdims)


@lru_cache(maxsize=65536)
def _kept(sizes: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if d in axes else n for d, n in enumerate(sizes))
    shape = tuple(n for d, n in enumerate(sizes) if d not in axes)
    return shape if len(shape) > 1 else (*shape, 1)


def reduction(
    op: str,
    x: Tensor,
    axis: Any,
    dtype: Any = None,
    keepdims: bool = False,
    negate: bool = False,
    dst: Tensor | None = None,
) -> Tensor:
    """Fold free dimensions with an ALU operator."""
    x = on_chip(x)
    view, count, axes = reduced(x, axis)
    out = dst if dst is not None else new(x, kept(x, axes, keepdims), dtype)
    ins.tensor_reduce(out, op, view, count, negate)
    return out


def mean(x: Tensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Arithmetic mean, summed in float32."""
    total = reduction("add", x, axis, FLOAT32, keepdims)
    return binary("multiply", total, 1.0 / (x.size / total.size), dtype or x.format)  # type: ignore[no-any-return]


def var(x: Tensor, axis: Any, dtype: Any = None) -> Tensor:
    """Variance (divided by n); the reduced dimensions stay with one element."""
    x = on_chip(x)
    centred = binary("subtract", x, mean(x, axis, FLOAT32, True), FLOAT32)
    return mean(function("square", centred), axis, dtype or x.format, True)


def softmax(x: Tensor, axis: Any = -1, dtype: Any = None) -> Tensor:
    """exp(x - max) / sum along free dimensions."""
    x = on_chip(x)
    shifted = binary("subtract", x, reduction("max", x, axis, FLOAT32, True), FLOAT32)
    exp = function("exp", shifted)
    inverse = reciprocal(reduction("add", exp, axis, FLOAT32, True))
    return binary("multiply", exp, inverse, dtype or x.format)  # type: ignore[no-any-return]


def rms_norm(
    x: Tensor, w: Tensor, axis: Any, n: int, epsilon: float = 1e-6, dtype: Any = None, compute_dtype: Any = None
) -> Tensor:
    """x / sqrt(sum(x^2) / n + epsilon) * w; compute_dtype: of what lies between, float32 if left out."""
    x, w = on_chip(x), on_chip(w)
    between = format_of(compute_dtype) if compute_dtype is not None else FLOAT32
    total = reduction("add", function("square", x, between), axis, between, True)
    shifted = new(total)
    ins.tensor_scalar(shifted, total, "multiply", 1.0 / n, op1="add", operand1=epsilon)
    scaled = binary("multiply", x, function("rsqrt", shifted), between)
    return binary("multiply", scaled, broadcast_to(w, scaled.shape), dtype or x.format)  # type: ignore[no-any-return]


def reciprocal(x: Tensor, dtype: Any = None) -> Tensor:
    """1 / x on VectorE."""
    x = on_chip(x)
    out = new(x, dtype=dtype)
    ins.emit("reciprocal", dst=out, data=x)
    return out


def divide(x: Any, y: Any, dtype: Any = None) -> Any:
    """x / y: by a number as a product; by a tile with its reciprocal, in float32."""
    if not isinstance(y, Tensor):
        return binary("multiply", x, 1.0 / y, dtype)
    fmt = dtype or (promoted(x.format, y.format) if isinstance(x, Tensor) else y.format)
    return binary("multiply", x, reciprocal(y, FLOAT32), fmt)


def rounded(x: Tensor, how: Callable[[float], int], dtype: Any = None) -> Tensor:
    """floor, ceil or trunc: round to the nearest integer, then correct by one where that went the wrong way."""
    x = on_chip(x)
    near = copy(copy(x, "int32"), FLOAT32)
    down = binary("subtract", near, binary("is_gt", near, x, FLOAT32), FLOAT32)
    if how is math.floor:
        return copy(down, dtype or x.format)
    up = binary("add", near, binary("is_lt", near, x, FLOAT32), FLOAT32)
    if how is math.ceil:
        return copy(up, dtype or x.format)
    return where(binary("is_lt", x, 0.0, "uint8"), up, down, dtype or x.format)


# -- the PE array -----------------------------------------------------------------------------------------------
def matmul(x: Tensor, y: Tensor, transpose_x: bool = False) -> Tensor:
    """x @ y, or x.T @ y when x is already transposed; the result is in PSUM."""
    if not transpose_x:
        x = in_sbuf(transpose(x))
    x, y = in_sbuf(x), in_sbuf(y)
    if (x.format.itemsize == 4) != (y.format.itemsize == 4):
        x, y = (t if t.format.itemsize == 4 else copy(t, FLOAT32) for t in (x, y))
    out = current().tensor((prod(x.shape[1:]), prod(y.shape[1:])), FLOAT32, _IN_PSUM)
    ins.nc_matmul(out, x, y, accumulate=False)
    return out


def transpose(x: Tensor, dtype: Any = None, engine: Engine | None = None) -> Tensor:
    """Partition and free dimension swapped: through the PE array into PSUM, or on VectorE in blocks into SBUF."""
    shape = (prod(x.shape[1:]), x.shape[0])
    if engine is _VECTOR:
        out = current().tensor(shape, x.format, _IN_SBUF)
        if max(shape) > VECTOR_BLOCK and x.ndim == 2:
            _turn_blocks(out, x)
            return copy(out, dtype) if dtype is not None and format_of(dtype) != out.format else out
    else:
        x = in_sbuf(x)
        if x.format.itemsize == 1 or x.format.dtype.kind not in "fV":
            x = copy(x, "bfloat16" if x.format.itemsize == 1 else FLOAT32)
        out = current().tensor(shape, x.format, _IN_PSUM)
    ins.emit("nc_transpose", dst=out, data=x, engine=engine)
    return copy(out, dtype) if dtype is not None and format_of(dtype) != out.format else out


def _turn_blocks(out: Tensor, x: Tensor) -> None:
    """out = the transpose of x on VectorE, which moves elements within 32 lanes: block by block."""
    rows, columns = x.shape
    for i in range(0, rows, VECTOR_BLOCK):
        for j in range(0, columns, VECTOR_BLOCK):
            up, right = slice(i, min(i + VECTOR_BLOCK, rows)), slice(j, min(j + VECTOR_BLOCK, columns))
            ins.emit("nc_transpose", dst=out[right, up], data=x[up, right], engine=_VECTOR)


def load_transpose2d(src: Tensor, dtype: Any = None) -> Tensor:
    """A tile in SBUF with the transpose of a two-dimensional HBM tensor."""
    tile = new(src, (src.shape[1], src.shape[0]), dtype)
    load_transposed(tile, src)
    return tile


def load_transposed(dst: Tensor, src: Tensor) -> None:
    """dst in SBUF = the transpose of src in HBM, bit by bit.

    Formats of two bytes are transposed by DMA engines that can, other floats by the PE array, a block of rows at a
    time; integers, which it does not take, and bytes move one by one.
    """
    floats = src.format.dtype.kind in "fV" and src.format.itemsize > 1
    if src.format == dst.format and floats and src.format.itemsize == 2 and current().chip.has("dma_transpose"):
        dma_transpose(dst, src, (1, 0))
        return
    if not floats or src.shape[1] > PARTITIONS:
        dma_copy(dst, src.permute((1, 0)))
        return
    for first in range(0, src.shape[0], PARTITIONS):
        last = min(first + PARTITIONS, src.shape[0])
        copy(transpose(load(src.slice(0, first, last))), dst=dst.slice(1, first, last))


def identity(n: int, dtype: Any) -> Tensor:
    """The n by n identity in SBUF, made once per kernel and format."""
    fmt = format_of(dtype)

    def make() -> Tensor:
        tile = current().tensor((n, n), fmt, _IN_SBUF)
        ones = filled((n, n), 1, fmt)
        ins.emit(
            "affine_select",
            dst=tile,
            on_true=ones,
            pattern=((-1, n),),
            offset=0,
            channel_multiplier=1,
            cmp_op="is_equal",
            on_false=0.0,
        )
        return tile

    tile = current().once(("identity", n, fmt), make)
    assert isinstance(tile, Tensor)
    return tile
