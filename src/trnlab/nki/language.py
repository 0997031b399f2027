# SPDX-License-Identifier: Apache-2.0
"""nki.language: tensors, loops and maths of the new dialect.

Loops run while recording, so every kind of range is a range. Maths is one or a few instructions, see `lang.compose`.

Source: nki/api/nki/language/__init__.py of aws-neuron/aws-neuron-sdk (NKI 0.6.0).
"""

from __future__ import annotations

import builtins
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from trnlab.lang import compose, registers
from trnlab.lang import instructions as ins
from trnlab.lang.formats import FORMATS, format_of
from trnlab.lang.recorder import current
from trnlab.lang.storage import MemorySpace as MemoryRegion
from trnlab.lang.storage import refuse
from trnlab.lang.tensor import IndexWindow
from trnlab.lang.tensor import Tensor as NkiTensor
from trnlab.nki import isa
from trnlab.nki.objects import NKIObject as NKIObject
from trnlab.nki.tile_sizes import _TileSize as _TileSize
from trnlab.nki.tile_sizes import tile_size as tile_size

DType = str
bool_ = FORMATS["bool"]
int8, int16, int32 = FORMATS["int8"], FORMATS["int16"], FORMATS["int32"]
uint8, uint16, uint32 = FORMATS["uint8"], FORMATS["uint16"], FORMATS["uint32"]
float16, float32, bfloat16, tfloat32 = (FORMATS[n] for n in ("float16", "float32", "bfloat16", "tfloat32"))
float8_e4m3, float8_e4m3fn, float8_e5m2 = (FORMATS[n] for n in ("float8_e4m3", "float8_e4m3fn", "float8_e5m2"))
float8_e8m0fnu = FORMATS["float8_e8m0fnu"]
float8_e5m2_x4, float8_e4m3fn_x4 = FORMATS["float8_e5m2_x4"], FORMATS["float8_e4m3fn_x4"]
float4_e2m1fn_x4 = FORMATS["float4_e2m1fn_x4"]

sbuf, psum = MemoryRegion.sbuf, MemoryRegion.psum
hbm = private_hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm

average = "average"
prelu = "prelu"
bypass = "bypass"
fp32 = np.finfo(np.float32)


def is_hbm(buffer: Any) -> bool:
    """Whether a region is HBM."""
    return buffer in (hbm, shared_hbm)


def is_on_chip(buffer: Any) -> bool:
    """Whether a region is SBUF or PSUM."""
    return not is_hbm(buffer)


def is_psum(buffer: Any) -> bool:
    """Whether a region is PSUM."""
    return buffer is psum


def is_sbuf(buffer: Any) -> bool:
    """Whether a region is SBUF."""
    return buffer is sbuf


# -- tensors ----------------------------------------------------------------------------------------------------
def ndarray(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "", address: Any = None) -> NkiTensor:
    """Fresh memory, not initialised. address: (partition, byte within it)."""
    return current().tensor(shape, dtype, _region(buffer), name=name, address=address)


def _region(buffer: Any) -> MemoryRegion:
    if not isinstance(buffer, MemoryRegion):
        refuse(
            "not a memory region",
            limit="nl.sbuf, nl.psum, nl.private_hbm, nl.shared_hbm",
            got=buffer,
            remedy="pass the object, not its name",
            code="TRN411",
        )
    return buffer


def zeros(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def full(shape: Any, fill_value: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A tensor of one value."""
    return compose.filled(shape, fill_value, dtype, _region(buffer), name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Zeros in the shape of x."""
    return zeros(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Fresh memory in the shape of x."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def shared_constant(constant: Any) -> NkiTensor:
    """An HBM tensor with the contents of a NumPy array or of a .npy file."""
    array = np.load(constant, allow_pickle=False) if isinstance(constant, str) else np.asarray(constant)
    fmt = format_of(array.dtype)
    return current().constant(array.astype(fmt.dtype), fmt)


def shared_identity_matrix(n: int, dtype: Any = uint8, dst: NkiTensor | None = None) -> NkiTensor:
    """The n by n identity in SBUF."""
    tile = compose.identity(n, dtype)
    return tile if dst is None else compose.copy(tile, dst=dst)


def ds(start: int, size: int) -> IndexWindow:
    """`size` elements from `start` on, as an index."""
    return IndexWindow(int(start), int(size))


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A tile in SBUF with the contents of an HBM tensor."""
    return compose.load(src, dtype)


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Write a tile to HBM."""
    compose.store(dst, value)


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A tile in SBUF with the transpose of an HBM tensor."""
    return compose.load_transpose2d(src, dtype)


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A new free dimension of one element."""
    return x.expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: Any, dtype: Any = None) -> NkiTensor:
    """x repeated to `shape`."""
    return compose.broadcast_to(x, tuple(shape), dtype)


def par_dim(size: int) -> int:
    """The size itself: the partition is the first dimension. Of earlier releases; causes a warning."""
    warnings.warn("nl.par_dim is gone from nki.language; the partition is the first dimension", stacklevel=2)
    return int(size)


# -- loops ------------------------------------------------------------------------------------------------------
def affine_range(start: int, stop: int | None = None, step: int = 1) -> builtins.range:
    """range()."""
    return builtins.range(int(start)) if stop is None else builtins.range(int(start), int(stop), int(step))


range = sequential_range = static_range = affine_range


def dynamic_range(start: Any, stop: Any = None, step: Any = 1) -> Iterator[registers.VirtualRegister]:
    """A loop on the device; bounds may be registers, the variable is one, see `lang.registers`."""
    return registers.counted(0, start, step) if stop is None else registers.counted(start, stop, step)


def fori_loop(lower: Any, upper: Any, body_fun: Any, step: Any = 1) -> None:
    """body_fun(i) for each i from lower on and below upper, a loop on the device."""
    registers.for_each(lower, upper, body_fun, step)


def while_loop(init: registers.VirtualRegister, body_fun: Any) -> None:
    """r = init; while r is not zero: r = body_fun(r), a loop on the device."""
    registers.repeat(init, body_fun)


@contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions start in the order in which they are written; loops on the device must not be inside."""
    recorder = current()
    recorder.ordered += 1
    recorder.builder.leaves_order = False
    try:
        yield
    finally:
        recorder.ordered -= 1
        recorder.builder.leaves_order = recorder.ordered == 0


def program_id(axis: int = 0) -> int:
    """This program's place in the launch grid."""
    return current().program[axis] if axis < len(current().program) else 0


def num_programs(axes: Any = 0) -> int:
    """Size of the launch grid along some axes."""
    grid = current().grid
    wanted = builtins.range(len(grid)) if axes is None else (axes,) if isinstance(axes, int) else axes
    return math.prod(grid[a] for a in wanted if a < len(grid))


def program_ndim() -> int:
    """Dimensions of the launch grid."""
    return len(current().grid)


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print the prefix and what a tensor in SBUF or HBM holds, in its place, whenever the kernel runs."""
    if not isinstance(print_prefix, str):
        refuse(
            "the prefix of what is printed is a text",
            limit="a str",
            got=print_prefix,
            remedy="call device_print(prefix, tensor)",
            code="TRN411",
        )
    if not isinstance(tensor, NkiTensor) or tensor.buffer is psum:
        refuse(
            "device_print shows a tensor in SBUF or HBM",
            limit="SBUF, HBM",
            got=repr(tensor),
            remedy="copy it to SBUF with nisa.tensor_copy first",
            code="TRN403",
        )
    current().show(print_prefix, tensor)


# -- maths ------------------------------------------------------------------------------------------------------
def _binary(name: str, op: str) -> Any:
    def function(x: Any, y: Any, dtype: Any = None) -> Any:
        return compose.binary(op, x, y, dtype)

    function.__name__, function.__doc__ = name, f"{name}, element by element; either input may be a number."
    return function


def _unary(name: str) -> Any:
    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        return compose.function(name, x, dtype)

    function.__name__, function.__doc__ = name, f"{name} of each element."
    return function


add, subtract, multiply = _binary("add", "add"), _binary("subtract", "subtract"), _binary("multiply", "multiply")
maximum, minimum, power = _binary("maximum", "max"), _binary("minimum", "min"), _binary("power", "power")
abs_max, abs_min = _binary("abs_max", "abs_max"), _binary("abs_min", "abs_min")
equal, not_equal = _binary("equal", "is_equal"), _binary("not_equal", "not_equal")
less, less_equal = _binary("less", "is_lt"), _binary("less_equal", "is_le")
greater, greater_equal = _binary("greater", "is_gt"), _binary("greater_equal", "is_ge")
bitwise_and, bitwise_or = _binary("bitwise_and", "bitwise_and"), _binary("bitwise_or", "bitwise_or")
bitwise_xor = _binary("bitwise_xor", "bitwise_xor")
left_shift, right_shift = _binary("left_shift", "left_shift"), _binary("right_shift", "right_shift")
logical_and, logical_or = _binary("logical_and", "logical_and"), _binary("logical_or", "logical_or")
logical_xor = _binary("logical_xor", "logical_xor")
fmod, mod = _binary("fmod", "mod"), _binary("mod", "mod")

abs, square, exp, log, sqrt = (_unary(n) for n in ("abs", "square", "exp", "log", "sqrt"))
tanh, sigmoid, relu, softplus, mish = (_unary(n) for n in ("tanh", "sigmoid", "relu", "softplus", "mish"))
gelu, gelu_dx, gelu_apprx_tanh = (_unary(n) for n in ("gelu", "gelu_dx", "gelu_apprx_tanh"))
gelu_apprx_sigmoid, gelu_apprx_sigmoid_dx = _unary("gelu_apprx_sigmoid"), _unary("gelu_apprx_sigmoid_dx")
silu, silu_dx, erf, erf_dx = (_unary(n) for n in ("silu", "silu_dx", "erf", "erf_dx"))
arctan, sign = _unary("arctan"), _unary("sign")


def rsqrt(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 / sqrt(x) of each element of a tile in SBUF, on GpSimd, which is slower and more precise than ScalarE."""
    x = compose.on_chip(x)
    if x.buffer is not sbuf:
        refuse(
            "nl.rsqrt takes a tile in SBUF",
            limit="SBUF",
            got=repr(x),
            code="TRN403",
            remedy="copy it to SBUF, or use nisa.activation with op=nl.rsqrt",
        )
    out = compose.new(x, dtype=dtype)
    ins.tensor_scalar(out, x, "rsqrt", 0.0)
    return out


def divide(x: Any, y: Any, dtype: Any = None) -> Any:
    """x / y."""
    return compose.divide(x, y, dtype)


def reciprocal(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 / x."""
    return compose.reciprocal(x, dtype)


def negative(x: NkiTensor, dtype: Any = None) -> Any:
    """-x."""
    return compose.binary("multiply", x, -1.0, dtype)


def invert(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The bits of x, flipped."""
    x = compose.on_chip(x)
    out = compose.new(x, dtype=dtype)
    ins.tensor_scalar(out, x, "invert", None)
    return out


def logical_not(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 where x is zero."""
    x = compose.on_chip(x)
    out = compose.new(x, dtype=dtype)
    ins.tensor_scalar(out, x, "logical_not", None)
    return out


def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A copy in SBUF."""
    return compose.copy(x, dtype)


def cast(x: NkiTensor, dtype: Any) -> NkiTensor:
    """`copy` under a name that kernels use and no release of the vendor documents; causes a warning."""
    current().remark(
        "nl.cast, which no release of the vendor documents, is taken for nl.copy",
        limit="the names of nki.language",
        got="nl.cast",
        remedy="write nl.copy(x, dtype=...)",
    )
    return compose.copy(x, dtype)


def sin(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The sine, of any angle: the angle is first brought to -pi..pi, which is all that ScalarE takes."""
    return _wave(x, 0.0, dtype)


def cos(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The cosine."""
    return _wave(x, math.pi / 2, dtype)


def _wave(x: NkiTensor, phase: float, dtype: Any) -> NkiTensor:
    x = compose.on_chip(x)
    turns = compose.new(x, dtype=float32)
    ins.tensor_scalar(turns, x, "multiply", 1 / (2 * math.pi), op1="add", operand1=phase / (2 * math.pi))
    whole = compose.copy(compose.copy(turns, int32), float32)
    rest = compose.binary("subtract", turns, whole, float32)
    return compose.function("sin", rest, dtype or x.dtype, scale=2 * math.pi)


def tan(x: NkiTensor, dtype: Any = None) -> Any:
    """The tangent."""
    return divide(sin(x, float32), cos(x, float32), dtype or x.dtype)


def floor(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The largest integer that is not larger."""
    return compose.rounded(x, math.floor, dtype)


def ceil(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The smallest integer that is not smaller."""
    return compose.rounded(x, math.ceil, dtype)


def trunc(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The integer part."""
    return compose.rounded(x, math.trunc, dtype)


def sum(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Sum along free dimensions."""
    return compose.reduction("add", x, axis, dtype, keepdims)


def max(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Maximum along free dimensions."""
    return compose.reduction("max", x, axis, dtype, keepdims)


def min(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Minimum along free dimensions."""
    return compose.reduction("min", x, axis, dtype, keepdims)


def prod(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Product along free dimensions."""
    return compose.reduction("multiply", x, axis, dtype, keepdims)


def all(x: NkiTensor, axis: Any, dtype: Any = None) -> NkiTensor:
    """Whether no element along free dimensions is zero."""
    return compose.reduction("logical_and", x, axis, dtype)


def mean(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Mean along free dimensions, in float32."""
    return compose.mean(x, axis, dtype, keepdims)


def var(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Variance along free dimensions, which stay with one element."""
    return compose.var(x, axis, dtype)


def softmax(x: NkiTensor, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """Softmax along free dimensions."""
    return compose.softmax(x, axis, dtype)


def rms_norm(
    x: NkiTensor, w: NkiTensor, axis: Any, n: int, epsilon: float = 1e-6, dtype: Any = None, compute_dtype: Any = None
) -> NkiTensor:
    """x / sqrt(mean(x^2) + epsilon) * w."""
    return compose.rms_norm(x, w, axis, n, epsilon, dtype, compute_dtype)


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """x where the condition is not zero, y elsewhere."""
    return compose.where(condition, x, y, dtype)


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """Zero each element with probability `rate`."""
    out = compose.new(x, dtype=dtype)
    isa.dropout(out, x, rate)
    return out


def rand(shape: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """Uniform numbers in [0, 1)."""
    bits = ndarray(shape, uint32)
    isa.rng(bits)
    high = ndarray(shape, uint32)
    ins.tensor_scalar(high, bits, "right_shift", 8)
    out = ndarray(shape, dtype, buffer, name)
    ins.tensor_scalar(out, compose.copy(high, float32), "multiply", 2.0**-24)
    return out


def random_seed(seed: NkiTensor) -> None:
    """Seed the generator."""
    isa.set_rng_seed(seed)


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """x @ y, in PSUM."""
    return compose.matmul(x, y, transpose_x)


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Partition and free dimension swapped."""
    return compose.transpose(x, dtype)


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """Per partition, elements of data by flat index. axis: 0, there is no other once data are flat."""
    if axis != 0:
        refuse("gather_flattened has one axis in trnlab", limit=0, got=axis, remedy="leave axis out", code="TRN411")
    out = compose.new(data, indices.shape)
    ins.emit("nc_n_gather", dst=out, data=data, indices=_flat_indices(indices))
    return out if dtype is None or format_of(dtype) == data.format else compose.copy(out, dtype)


def _flat_indices(indices: NkiTensor) -> NkiTensor:
    """Whole numbers as the instruction reads them, uint32: the bits of int32, other formats cast."""
    if indices.format.dtype.kind in "iu" and indices.format.itemsize == 4:
        return indices.view("uint32")
    return compose.copy(indices, "uint32")
