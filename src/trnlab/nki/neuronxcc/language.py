# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki.language: tensors, index expressions and maths of the old dialect.

Source: how kernels of aws-neuron/nki-samples (3a99c91) and tests of aws-neuron/aws-neuron-sdk (nki/test) call them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Self

import ml_dtypes
import numpy as np

from trnlab.lang import compose, transfers
from trnlab.lang import instructions as ins
from trnlab.lang.formats import FORMATS, format_of
from trnlab.lang.recorder import current
from trnlab.lang.tensor import Region, Tensor
from trnlab.nki import language as new
from trnlab.nki.language import (
    NKIObject,
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
from trnlab.nki.launch import Spread
from trnlab.nki.neuronxcc import isa
from trnlab.nki.neuronxcc.affine import arange, mgrid
from trnlab.nki.neuronxcc.tile import Blocks, LoopSum, ParDim, Tile, make, promise_zero, trimmed
from trnlab.nki.operators import alu_name

__all__ = [
    "NKIObject",
    "arange",
    "bfloat16",
    "bool_",
    "ds",
    "float8_e4m3",
    "float8_e5m2",
    "float16",
    "float32",
    "fp32",
    "hbm",
    "int8",
    "int16",
    "int32",
    "mgrid",
    "num_programs",
    "private_hbm",
    "program_id",
    "program_ndim",
    "psum",
    "sbuf",
    "shared_hbm",
    "tfloat32",
    "tile_size",
    "uint8",
    "uint16",
    "uint32",
]  # fmt: skip

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


def _region(buffer: Any) -> Region:
    """The region of a `buffer=`: an allocator of nki.compiler stands for its memory."""
    return getattr(buffer, "region", buffer) or Region.sbuf


# -- tensors ----------------------------------------------------------------------------------------------------
def ndarray(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """Fresh memory, not initialised; blocks of tiles when par_dim is not first."""
    return make(shape, dtype, _region(buffer), name)


def zeros(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **options: Any) -> Any:
    """Zeros; in PSUM they are written only when something other than a matmul needs them."""
    return full(shape, 0, dtype, buffer=buffer, name=name)


def ones(shape: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """Ones."""
    return full(shape, 1, dtype, buffer=buffer, name=name)


def full(shape: Any, fill_value: Any, dtype: Any, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """One value everywhere."""
    region = _region(buffer)
    if region in (Region.private_hbm, Region.shared_hbm):
        return compose.filled(tuple(int(s) for s in shape), fill_value, dtype, region)
    made = make(shape, dtype, region, name)
    fill = promise_zero if region is Region.psum and fill_value == 0 else _filler(fill_value)
    if isinstance(made, Blocks):
        made.each(fill)
    else:
        fill(made)
    return made


def _filler(value: Any) -> Callable[[Tensor], None]:
    return lambda tile: compose.fill(tile, value)


def zeros_like(a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """Zeros in the shape of a."""
    return zeros(a.shape, dtype or a.dtype, buffer=buffer or a.buffer, name=name)


def empty_like(a: Any, dtype: Any = None, *, buffer: Any = None, name: str = "", **_: Any) -> Any:
    """Fresh memory in the shape of a."""
    return ndarray(a.shape, dtype or a.dtype, buffer=buffer or a.buffer, name=name)


def shared_constant(constant: Any, dtype: Any = None) -> Tensor:
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


def load(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Any:
    """A tile in SBUF with the contents of an HBM tensor; a vector goes one element to a partition."""
    if src.on_chip:
        return compose.copy(src, dtype)
    shape = src.shape if src.ndim > 1 else (*src.shape, 1)
    out = current().tensor(shape, dtype or src.format, Region.sbuf)
    parts = trimmed(mask, out, src)
    if parts:
        transfers.dma_copy(parts[0], parts[1])
    return out


def store(dst: Tensor, value: Any, *, mask: Any = None, **_: Any) -> None:
    """Write a tile to HBM."""
    if not isinstance(value, Tensor):
        value = compose.filled(dst.shape if dst.ndim > 1 else (*dst.shape, 1), value, dst.format)
    if value.shape != dst.shape and value.size != dst.size:
        value = compose.broadcast_to(value, dst.shape)
    parts = trimmed(mask, dst, value)
    if parts:
        compose.store(parts[0], parts[1])


def load_transpose2d(src: Tensor, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """A tile in SBUF with the transpose of an HBM tensor."""
    return compose.load_transpose2d(src, dtype)


def copy(src: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Tensor:
    """A copy in SBUF."""
    return isa.tensor_copy(src, mask=mask, dtype=dtype)


def expand_dims(data: Tensor, axis: int) -> Tensor:
    """A new free dimension of one element."""
    return data.expand_dim(axis)


def broadcast_to(src: Tensor, *, shape: Any, **_: Any) -> Tensor:
    """src repeated to `shape`."""
    return compose.broadcast_to(src, tuple(int(s) for s in shape))


def static_cast(value: Any, dtype: Any) -> Any:
    """An array on the host in another format."""
    return np.asarray(value).astype(format_of(dtype).dtype)


def loop_reduce(x: Tensor, op: Any, loop_indices: Any, *, dtype: Any = None, **_: Any) -> LoopSum:
    """The fold of a tile over iterations of loops that count from zero."""
    return LoopSum(x, all_zero(loop_indices), alu_name(op))


def all_zero(indices: Any) -> bool:
    """Whether this is the first iteration."""
    return not any(int(i) for i in indices)


# -- loops ------------------------------------------------------------------------------------------------------
def affine_range(*bounds: int, **_: Any) -> Iterator[int]:
    """range(), of which the kernel says that no iteration depends on another; the check `race` looks whether."""
    return current().independent(range(*(int(b) for b in bounds)))


def sequential_range(*bounds: int, **_: Any) -> range:
    """range(): iterations may depend on earlier ones."""
    return range(*(int(b) for b in bounds))


static_range = sequential_range
no_reorder = new.no_reorder


def device_print(prefix: str, x: Any = None, **_: Any) -> None:
    """Taken and not shown."""


# -- maths ------------------------------------------------------------------------------------------------------
def _unary(name: str) -> Any:
    def function(x: Tensor, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
        out = current().tensor(x.shape, dtype or x.format, Region.sbuf)
        parts = trimmed(mask, out, x)
        if parts:
            compose.function(name, parts[1], dst=parts[0])
        return out

    function.__name__, function.__doc__ = name, f"{name} of each element."
    return function


def _binary(name: str, op: str, truth: bool = False) -> Any:
    def function(x: Any, y: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
        tiles = [t for t in (x, y) if isinstance(t, Tensor)]
        if not tiles:
            return compose.binary(op, x, y)
        if len(tiles) == 2 and x.ndim != y.ndim:
            x, y = _same_rank(x, y), _same_rank(y, x)
            tiles = [x, y]
        shape = tiles[0].shape if len(tiles) == 1 else compose.broadcast_shape(x.shape, y.shape)
        fmt = dtype or ("uint8" if truth else _result(x, y))
        out = current().tensor(shape, fmt, Region.sbuf)
        parts = trimmed(mask, out, x, y)
        if parts:
            compose.binary(op, parts[1], parts[2], dst=parts[0])
        return out

    function.__name__, function.__doc__ = name, f"{name}, element by element; inputs of one element repeat."
    return function


def _same_rank(x: Tensor, y: Tensor) -> Tensor:
    if x.ndim >= y.ndim:
        return x
    return x._reshaped((x.shape[0], *(1,) * (y.ndim - x.ndim), *x.shape[1:]))


def _result(x: Any, y: Any) -> Any:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return compose.promoted(x.format, y.format)
    tile, number = (x, y) if isinstance(x, Tensor) else (y, x)
    whole = format_of(tile.format).dtype.kind in "iu"
    return FORMATS["float32"] if whole and isinstance(number, float) else tile.format


add, subtract, multiply = _binary("add", "add"), _binary("subtract", "subtract"), _binary("multiply", "multiply")
maximum, minimum, power = _binary("maximum", "max"), _binary("minimum", "min"), _binary("power", "power")
mod, fmod = _binary("mod", "mod"), _binary("fmod", "mod")
equal, not_equal = _binary("equal", "is_equal", True), _binary("not_equal", "not_equal", True)
less, less_equal = _binary("less", "is_lt", True), _binary("less_equal", "is_le", True)
greater, greater_equal = _binary("greater", "is_gt", True), _binary("greater_equal", "is_ge", True)
bitwise_and, bitwise_or = _binary("bitwise_and", "bitwise_and"), _binary("bitwise_or", "bitwise_or")
bitwise_xor = _binary("bitwise_xor", "bitwise_xor")
left_shift, right_shift = _binary("left_shift", "left_shift"), _binary("right_shift", "right_shift")
logical_and, logical_or = _binary("logical_and", "logical_and", True), _binary("logical_or", "logical_or", True)
logical_xor = _binary("logical_xor", "logical_xor", True)

abs, square, exp, log, sqrt = (_unary(n) for n in ("abs", "square", "exp", "log", "sqrt"))
tanh, sigmoid, relu, softplus, mish = (_unary(n) for n in ("tanh", "sigmoid", "relu", "softplus", "mish"))
gelu, gelu_dx, gelu_apprx_tanh = (_unary(n) for n in ("gelu", "gelu_dx", "gelu_apprx_tanh"))
silu, silu_dx, erf, erf_dx = (_unary(n) for n in ("silu", "silu_dx", "erf", "erf_dx"))
arctan, sign, rsqrt, reciprocal = (_unary(n) for n in ("arctan", "sign", "rsqrt", "reciprocal"))


def divide(x: Any, y: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """x / y."""
    if not isinstance(y, Tensor):
        return multiply(x, 1.0 / y, dtype=dtype, mask=mask)
    inverse = isa.reciprocal(y, dtype="float32", mask=mask)
    return multiply(x, inverse, dtype=dtype or _result(x, y), mask=mask)


def negative(x: Tensor, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """-x."""
    return multiply(x, -1, dtype=dtype, mask=mask)


def sin(x: Tensor, *, dtype: Any = None, **_: Any) -> Any:
    """The sine."""
    return new.sin(x, dtype)


def cos(x: Tensor, *, dtype: Any = None, **_: Any) -> Any:
    """The cosine."""
    return new.cos(x, dtype)


def floor(x: Any, *, dtype: Any = None, **_: Any) -> Any:
    """The largest integer that is not larger."""
    return compose.rounded(x, math.floor, dtype)


def ceil(x: Any, *, dtype: Any = None, **_: Any) -> Any:
    """The smallest integer that is not smaller."""
    return compose.rounded(x, math.ceil, dtype)


def trunc(x: Any, *, dtype: Any = None, **_: Any) -> Any:
    """The integer part."""
    return compose.rounded(x, math.trunc, dtype)


def _reduction(name: str, op: str) -> Any:
    def function(
        x: Tensor, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any
    ) -> Any:
        return isa.reduce(op, x, axis, dtype, mask, keepdims)

    function.__name__, function.__doc__ = name, f"{name} along free dimensions."
    return function


sum, max, min = _reduction("sum", "add"), _reduction("max", "max"), _reduction("min", "min")
prod, all = _reduction("prod", "multiply"), _reduction("all", "logical_and")


def mean(x: Tensor, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False, **_: Any) -> Any:
    """Mean along free dimensions."""
    total = isa.reduce("add", x, axis, "float32", mask, keepdims)
    count = x.size / total.size
    return multiply(total, 1.0 / count, dtype=dtype or x.format)


def var(x: Tensor, axis: Any, *, dtype: Any = None, **_: Any) -> Any:
    """Variance along free dimensions."""
    return compose.var(x, axis, dtype)


def softmax(x: Tensor, axis: Any, *, dtype: Any = None, **_: Any) -> Any:
    """Softmax along free dimensions."""
    return compose.softmax(x, axis, dtype)


def where(condition: Any, x: Any, y: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Any:
    """x where the condition is not zero, y elsewhere."""
    return compose.where(condition, x, y, dtype)


def matmul(x: Tensor, y: Tensor, *, transpose_x: bool = False, mask: Any = None, **_: Any) -> Any:
    """x @ y in PSUM."""
    return compose.matmul(x, y, transpose_x)


def transpose(x: Tensor, *, dtype: Any = None, **_: Any) -> Any:
    """Partition and free dimension swapped."""
    return compose.transpose(x, dtype)


def gather_flattened(data: Tensor, indices: Tensor, *, dtype: Any = None, **_: Any) -> Any:
    """Per partition, elements of data by flat index."""
    return new.gather_flattened(data, indices, dtype=dtype)


def dropout(x: Tensor, rate: Any, *, dtype: Any = None, **_: Any) -> Any:
    """Zero each element with probability `rate`."""
    return isa.dropout(x, rate, dtype=dtype)


def rand(shape: Any, **options: Any) -> Any:
    """Uniform numbers in [0, 1)."""
    return new.rand(shape, options.get("dtype", "float32"))


def random_seed(seed: Any, **_: Any) -> None:
    """Seed the generator."""
    tile = seed if isinstance(seed, Tensor) else compose.filled((1, 1), seed, "int32")
    new.random_seed(tile)


def invert(x: Tensor, *, dtype: Any = None, **_: Any) -> Any:
    """The bits of x, flipped."""
    return new.invert(x, dtype)


def logical_not(x: Tensor, *, dtype: Any = None, **_: Any) -> Any:
    """1 where x is zero."""
    return new.logical_not(x, dtype or "uint8")
