# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki.language: tensors, loops and data movement of the old dialect; maths is in `maths`.

Loops run while recording, so that every kind of range is a range. `**options` of the functions steer the vendor's
compiler only and change nothing.

Source: nki.language of the 2.2x documentation of aws-neuron-sdk, the kernels of aws-neuron/nki-samples (3a99c91) and
the tests of aws-neuron/aws-neuron-sdk (nki/test).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self

import ml_dtypes
import numpy as np

from trnlab.lang import compose, transfers
from trnlab.lang.formats import format_of
from trnlab.lang.recorder import current
from trnlab.lang.storage import MemorySpace, refuse
from trnlab.lang.tensor import Tensor
from trnlab.nki import language as new
from trnlab.nki.isa import nc_n_gather
from trnlab.nki.language import (
    bfloat16,
    bool_,
    ds,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    fp32,
    hbm,
    int8,
    int16,
    int32,
    no_reorder,
    num_programs,
    private_hbm,
    program_id,
    program_ndim,
    psum,
    sbuf,
    shared_hbm,
    tfloat32,
    tile_size,
    uint8,
    uint16,
    uint32,
)
from trnlab.nki.neuronxcc import elementwise as each
from trnlab.nki.neuronxcc import isa
from trnlab.nki.neuronxcc.affine import arange, mgrid
from trnlab.nki.neuronxcc.assignment import LoopSum
from trnlab.nki.neuronxcc.blocks import BlockedTensor, ParDim, make
from trnlab.nki.neuronxcc.compiler import region_of
from trnlab.nki.neuronxcc.defined import record
from trnlab.nki.neuronxcc.loops import affine_range, sequential_range, static_range
from trnlab.nki.neuronxcc.masked import boxed, cut, trimmed
from trnlab.nki.neuronxcc.maths import (
    abs,
    add,
    all,
    arctan,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    ceil,
    cos,
    divide,
    dropout,
    equal,
    erf,
    erf_dx,
    exp,
    floor,
    fmod,
    gelu,
    gelu_apprx_sigmoid,
    gelu_apprx_sigmoid_dx,
    gelu_apprx_tanh,
    gelu_dx,
    greater,
    greater_equal,
    invert,
    left_shift,
    less,
    less_equal,
    log,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    mish,
    mod,
    multiply,
    negative,
    not_equal,
    power,
    prod,
    rand,
    random_seed,
    reciprocal,
    relu,
    right_shift,
    rms_norm,
    rsqrt,
    sigmoid,
    sign,
    silu,
    silu_dx,
    sin,
    softmax,
    softplus,
    sqrt,
    square,
    subtract,
    sum,
    tan,
    tanh,
    transpose,
    trunc,
    var,
    where,
)
from trnlab.nki.neuronxcc.tile import Tile
from trnlab.nki.neuronxcc.zeros import promise_zero, settle
from trnlab.nki.objects import NKIObject
from trnlab.nki.operators import alu_name
from trnlab.nki.tracing.launch import Spread

__all__ = [
    "NKIObject",
    "abs",
    "add",
    "affine_range",
    "all",
    "arange",
    "arctan",
    "bfloat16",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bool_",
    "ceil",
    "cos",
    "divide",
    "dropout",
    "ds",
    "equal",
    "erf",
    "erf_dx",
    "exp",
    "float8_e4m3",
    "float8_e5m2",
    "float16",
    "float32",
    "floor",
    "fmod",
    "fp32",
    "gelu",
    "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx",
    "gelu_apprx_tanh",
    "gelu_dx",
    "greater",
    "greater_equal",
    "hbm",
    "int8",
    "int16",
    "int32",
    "invert",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "maximum",
    "mean",
    "mgrid",
    "min",
    "minimum",
    "mish",
    "mod",
    "multiply",
    "negative",
    "no_reorder",
    "not_equal",
    "num_programs",
    "power",
    "private_hbm",
    "prod",
    "program_id",
    "program_ndim",
    "psum",
    "rand",
    "random_seed",
    "reciprocal",
    "relu",
    "right_shift",
    "rms_norm",
    "rsqrt",
    "sbuf",
    "sequential_range",
    "shared_hbm",
    "sigmoid",
    "sign",
    "silu",
    "silu_dx",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "static_range",
    "subtract",
    "sum",
    "tan",
    "tanh",
    "tfloat32",
    "tile_size",
    "transpose",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "var",
    "where",
]

par_dim = ParDim
dslice = ds
tensor = Tile
finfo = ml_dtypes.finfo


class nc(Spread):
    """A number of physical cores in a launch grid: nl.nc(2) programs, one on each."""

    def __new__(cls, cores: int) -> Self:
        """`cores` programs on as many cores."""
        return super().__new__(cls, int(cores), int(cores))

    def __mul__(self, other: int) -> int:
        """nl.nc(2) * n: neighbouring programs share a core."""
        return spmd_dim(self, other)

    def __rmul__(self, other: int) -> int:
        """n * nl.nc(2): cores take turns."""
        return spmd_dim(other, self)


def spmd_dim(outer: int, inner: int) -> int:
    """A grid dimension of outer * inner programs, one of which may say nl.nc: how they spread over cores."""
    size = int(outer) * int(inner)
    if isinstance(outer, Spread):
        return Spread(size, outer.cores)
    return Spread(size, inner.cores, in_turns=True) if isinstance(inner, Spread) else size


# -- tensors ----------------------------------------------------------------------------------------------------
def ndarray(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """Fresh memory, not initialised; blocks of tiles when par_dim is not first."""
    return make(shape, dtype, buffer, name)


def zeros(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """Zeros; in PSUM they are written only when something other than a matmul needs them."""
    return full(shape, 0, dtype, buffer=buffer, name=name)


def ones(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """Ones."""
    return full(shape, 1, dtype, buffer=buffer, name=name)


def full(shape: Any, fill_value: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """One value everywhere."""
    region = region_of(buffer)
    if region in (MemorySpace.private_hbm, MemorySpace.shared_hbm):
        return compose.filled(tuple(int(s) for s in shape), fill_value, dtype, region)
    fill = promise_zero if region is MemorySpace.psum and fill_value == 0 else _filler(fill_value)
    return make(shape, dtype, buffer, name, fill)


def _filler(value: Any) -> Callable[[Tensor], None]:
    def fill(tile: Tensor) -> None:
        compose.fill(tile, value)
        record(tile, {})

    return fill


def _like(a: Any) -> Any:
    """The shape of a, with its partition marked."""
    if isinstance(a, BlockedTensor):
        return (*a.shape[: a._blocks], ParDim(a.shape[a._blocks]), *a.shape[a._blocks + 1 :])
    return a.shape


def zeros_like(a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """Zeros in the shape of a."""
    return zeros(_like(a), dtype or a.dtype, buffer=buffer or a.buffer, name=name)


def empty_like(a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """Fresh memory in the shape of a."""
    return ndarray(_like(a), dtype or a.dtype, buffer=buffer or a.buffer, name=name)


def shared_constant(constant: Any, dtype: Any = None, **_: Any) -> Tensor:
    """An HBM tensor with the contents of an array."""
    array = np.asarray(constant)
    fmt = format_of(dtype or array.dtype)
    return current().constant(array.astype(fmt.dtype), fmt)


def shared_identity_matrix(n: int, dtype: Any = "uint8", **_: Any) -> Tensor:
    """The n by n identity in HBM."""
    fmt = format_of(dtype)
    made = current().once(("identity in HBM", n, fmt), lambda: current().constant(np.eye(n, dtype=fmt.dtype), fmt))
    assert isinstance(made, Tensor)
    return made


# -- data movement ----------------------------------------------------------------------------------------------
def load(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Any:
    """A tile in SBUF with the contents of an HBM tensor; a vector goes one element to a partition."""
    if src.on_chip:
        return each.copied(src, dtype, mask)
    shape = src.shape if src.ndim > 1 else (*src.shape, 1)
    return each.computed(shape, dtype or src.format, mask, (src,), transfers.dma_copy)


def store(dst: Tensor, value: Any, *, mask: Any = None, **_: Any) -> None:
    """Write a tile to HBM."""
    if isinstance(value, BlockedTensor):
        refuse(
            "blocks of tiles are stored one by one",
            limit="a tile",
            got=list(value.shape),
            remedy="loop over the leading dimensions",
            code="TRN410",
        )
    if not isinstance(value, Tensor):
        value = compose.filled(dst.shape if dst.ndim > 1 else (*dst.shape, 1), value, dst.format)
    settle(value)
    if value.ndim == dst.ndim and value.size != dst.size:
        value = compose.broadcast_to(value, dst.shape)
    box = boxed(mask, dst.shape)
    if any(low >= high for low, high in box.values()):
        return
    compose.store(cut(dst, box), cut(value, box) if value.ndim == dst.ndim else cut(value, boxed(mask, value.shape)))


def atomic_rmw(dst: Tensor, value: Any, op: Any, *, mask: Any = None, **_: Any) -> None:
    """dst = dst op value in HBM, with dst indexed by a tile; op is np.add."""
    if not isinstance(value, Tensor):
        value = compose.filled(dst.shape, value, dst.format)
    parts = trimmed(mask, dst, value)
    if parts:
        isa.accumulated(parts[0], parts[1], op)


def load_transpose2d(src: Tensor, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """A tile in SBUF with the transpose of an HBM tensor."""
    box = {1 - axis: edges for axis, edges in boxed(mask, src.shape).items()}
    out = each.result((src.shape[1], src.shape[0]), dtype or src.format)
    if not any(low >= high for low, high in box.values()):
        part = cut(src, {1 - axis: edges for axis, edges in box.items()})
        compose.load_transposed(cut(out, box), part)
        record(out, box)
    return out


def copy(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """A copy in SBUF."""
    return each.copied(src, dtype, mask)


def gather_flattened(data: Tensor, indices: Tensor, *, mask: Any = None, dtype: Any = None, **_: Any) -> Any:
    """Per partition, elements of data by their index in the flattened free dimensions."""
    settle(data)

    def emit(out: Tensor, indices: Tensor) -> None:
        rows = data if out.shape[0] == data.shape[0] else data[0 : out.shape[0]]
        nc_n_gather(out, rows, indices)

    return each.computed(indices.shape, dtype or data.format, mask, (indices,), emit)


def expand_dims(data: Tensor, axis: Any) -> Tensor:
    """New free dimensions of one element."""
    return data.expand_dims(axis)  # type: ignore[attr-defined, no-any-return]


def broadcast_to(src: Tensor, *, shape: Any, **_: Any) -> Tensor:
    """src repeated to `shape`."""
    settle(src)
    return compose.broadcast_to(src, tuple(int(s) for s in shape))


def static_cast(value: Any, dtype: Any) -> Any:
    """An array on the host in another format."""
    return np.asarray(value).astype(format_of(dtype).dtype)


# -- loops ----------------------------------------------------------------------------------------------------
def loop_reduce(x: Tensor, op: Any, loop_indices: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> LoopSum:
    """The fold of a tile over iterations of loops that count from zero."""
    indices = loop_indices if isinstance(loop_indices, (list, tuple)) else (loop_indices,)
    value = x if dtype is None or format_of(dtype) == x.format else each.copied(x, dtype, mask)
    return LoopSum(value, not any(int(i) for i in indices), alu_name(op))


def all_reduce(
    x: Tensor,
    op: Any,
    program_axes: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    parallel_reduce: bool = True,
    asynchronous: bool = False,
    **_: Any,
) -> Tensor:
    """The fold of a tile over programs of the launch grid: itself where there is one program along the axes."""
    axes = program_axes if isinstance(program_axes, (list, tuple)) else (program_axes,)
    count = math.prod(num_programs(int(a)) for a in axes)
    if count > 1:
        refuse(
            "trnlab runs the programs of a grid one after the other, so that none can wait for the others' tiles",
            limit="one program along the axes",
            got=count,
            remedy="store the parts to HBM and fold them in a second kernel",
            code="TRN414",
        )
    return x if dtype is None and mask is None else each.copied(x, dtype, mask)


def device_print(prefix: str, x: Any, *, mask: Any = None, **_: Any) -> None:
    """Show what a tile holds, or the part of it that the mask leaves, when the kernel runs."""
    box = boxed(mask, x.shape)
    if not any(low >= high for low, high in box.values()):
        settle(x)
        shown = cut(x, box)
        new.device_print(prefix, compose.in_sbuf(shown) if shown.on_chip else shown)
