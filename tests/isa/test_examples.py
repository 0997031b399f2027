# SPDX-License-Identifier: Apache-2.0
"""Each instruction on arrays small enough to check by hand, one row of the table per fact."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from isa_cases import compute

from trnlab import isa
from trnlab.errors import RunError
from trnlab.isa.collectives.collective import CollectiveInstruction
from trnlab.numerics import xorwow
from trnlab.numerics.dtypes import from_numpy

BF16 = ml_dtypes.bfloat16
INF, NAN = np.inf, np.nan


def f32(*rows: Any) -> np.ndarray[Any, Any]:
    return np.array(rows, np.float32)


def i32(*rows: Any) -> np.ndarray[Any, Any]:
    return np.array(rows, np.int32)


def u8(*rows: Any) -> np.ndarray[Any, Any]:
    return np.array(rows, np.uint8)


@dataclass
class Example:
    """name(**src, **attrs) leaves `want` in dst (of format `into`), and the others of `more`."""

    name: str
    src: dict[str, Any]
    want: Any
    attrs: dict[str, Any] = field(default_factory=dict)
    into: str = "float32"
    held: Any = None
    more: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)  # what destinations held before
    name_of_dst: str = "dst"


A, B = f32([1, 2], [3, 4]), f32([10, 20], [30, 40])
FP32_MIN = float(np.finfo(np.float32).min)
WORDS = np.arange(12, dtype=np.uint32).reshape(2, 6)
EXAMPLES = [
    # nc_matmul: K = 2 rows, A.T @ B
    Example("nc_matmul", {"stationary": A, "moving": B}, f32([100, 140], [140, 200])),
    Example(
        "nc_matmul",
        {"stationary": A, "moving": B},
        f32([101, 141], [141, 201]),
        {"accumulate": True},
        held=f32([1, 1], [1, 1]),
    ),
    Example("nc_matmul", {"stationary": f32([2]), "moving": f32([3, 4, 5])}, f32([6, 8, 10])),
    # nc_transpose
    Example("nc_transpose", {"data": f32([1, 2, 3], [4, 5, 6])}, f32([1, 4], [2, 5], [3, 6])),
    Example("nc_transpose", {"data": i32([16777217, 2])}, i32([16777217], [2]), into="int32"),
    # activation
    Example("activation", {"data": A}, A),
    Example("activation", {"data": f32([-1, 0, 2])}, f32([0, 0, 2]), {"op": "relu"}),
    Example("activation", {"data": A, "bias": f32([1], [2])}, f32([3, 5], [8, 10]), {"scale": 2.0}),
    Example("activation", {"data": A, "scale": f32([2], [3])}, f32([4, 16], [81, 144]), {"op": "square"}),
    Example("activation", {"data": A}, A, {"scale": None, "bias": None}),
    Example("activation", {"data": f32([-0.0, 0.0])}, f32([-0.0, 0.0]), {"scale": 2.0}),
    Example("activation", {"data": f32([-0.0]), "bias": f32([0.0])}, f32([0.0])),
    Example("activation", {"data": f32([-0.0])}, f32([-INF]), {"op": "reciprocal"}),
    Example("activation", {"data": A}, A, more={"reduce_res": f32([3], [7])}),
    Example("activation", {"data": f32([0.25, 4])}, f32([2, 0.5]), {"op": "rsqrt"}),
    Example("activation", {"data": f32([-3, 0, 5])}, f32([-1, 0, 1]), {"op": "sign"}),
    Example("activation", {"data": f32([-INF, 0, INF])}, f32([0, 1, INF]), {"op": "exp"}),
    Example("activation", {"data": f32([-INF, INF])}, f32([NAN, INF]), {"op": "gelu"}),
    Example("activation", {"data": f32([-INF, INF])}, f32([NAN, NAN]), {"op": "gelu_apprx_tanh_dx"}),
    Example("activation", {"data": f32([-INF, INF])}, f32([NAN, INF]), {"op": "silu"}),
    Example("activation", {"data": f32([0.5, 1.5])}, i32([0, 2]), into="int32"),
    # the sum is of the results before they are rounded to dst
    Example(
        "activation",
        {"data": f32([1.001, 1])},
        f32([1, 1]).astype(BF16),
        into="bfloat16",
        more={"reduce_res": f32([2.001])},
    ),
    # tensor_copy
    Example("tensor_copy", {"src": A}, A),
    Example("tensor_copy", {"src": i32([16777217])}, i32([16777217]), into="int32"),
    Example("tensor_copy", {"src": i32([16777217])}, f32([16777216])),
    Example(
        "tensor_copy", {"src": f32([0.5, 1.5, 2.5, -0.5, 300, -300, NAN])}, u8([0, 2, 2, 0, 255, 0, 0]), into="uint8"
    ),
    Example("tensor_copy", {"src": f32([1e9, -1e9])}, np.array([[32767, -32768]], np.int16), into="int16"),
    Example("tensor_copy", {"src": f32([0, 0.25, NAN, -3])}, u8([0, 1, 1, 1]), into="bool"),
    Example("tensor_copy", {"src": u8([0, 7])}, u8([0, 1]), into="bool"),
    # memset
    Example("memset", {}, f32([7, 7], [7, 7]), {"value": 7}),
    Example("memset", {}, i32([16777217]), {"value": 16777217}, into="int32"),
    Example("memset", {}, np.array([[4294967295]], np.uint32), {"value": 4294967295}, into="uint32"),
    Example("memset", {}, f32([-INF]).astype(BF16), {"value": -INF}, into="bfloat16"),
    # tensor_tensor
    Example("tensor_tensor", {"data1": A, "data2": B}, f32([11, 22], [33, 44])),
    Example("tensor_tensor", {"data1": A, "data2": B}, f32([-9, -18], [-27, -36]), {"op": "subtract"}),
    Example(
        "tensor_tensor", {"data1": f32([1, NAN, 3]), "data2": f32([2, 1, NAN])}, f32([2, NAN, NAN]), {"op": "max"}
    ),
    Example("tensor_tensor", {"data1": A, "data2": f32([2, 2], [3, 3])}, f32([1, 4], [27, 64]), {"op": "power"}),
    Example("tensor_tensor", {"data1": f32([5, -5]), "data2": f32([3, 3])}, f32([2, -2]), {"op": "mod"}),
    Example("tensor_tensor", {"data1": A, "data2": f32([1, 3], [3, 3])}, f32([1, 0], [1, 1]), {"op": "is_ge"}),
    Example(
        "tensor_tensor", {"data1": f32([0, 2, 0]), "data2": f32([0, 1, 5])}, f32([0, 1, 0]), {"op": "logical_and"}
    ),
    Example(
        "tensor_tensor", {"data1": u8([12, 255]), "data2": u8([10, 15])}, u8([8, 15]), {"op": "bitwise_and"}, "uint8"
    ),
    Example(
        "tensor_tensor", {"data1": i32([1, -1]), "data2": i32([3, 4])}, i32([8, -16]), {"op": "left_shift"}, "int32"
    ),
    # there is no arithmetic right shift: zeros enter from above
    Example(
        "tensor_tensor", {"data1": i32([-1, 8]), "data2": i32([28, 3])}, i32([15, 1]), {"op": "right_shift"}, "int32"
    ),
    Example("tensor_tensor", {"data1": i32([5]), "data2": i32([32])}, i32([0]), {"op": "left_shift"}, "int32"),
    # two 32-bit integers: exact, and wrapping
    Example(
        "tensor_tensor",
        {"data1": i32([16777217, 2147483647]), "data2": i32([2, 1])},
        i32([16777219, -2147483648]),
        into="int32",
    ),
    Example(
        "tensor_tensor", {"data1": i32([16777217]), "data2": i32([16777216])}, i32([1]), {"op": "is_gt"}, "int32"
    ),
    # tensor_scalar
    Example("tensor_scalar", {"data": A}, f32([3, 6], [9, 12]), {"operand0": 3.0}),
    Example("tensor_scalar", {"data": A, "operand0": f32([2], [3])}, f32([2, 4], [9, 12])),
    Example("tensor_scalar", {"data": A}, f32([9, 8], [7, 6]), {"op0": "subtract", "operand0": 10, "reverse0": True}),
    Example("tensor_scalar", {"data": A}, f32([-9, -8], [-7, -6]), {"op0": "subtract", "operand0": 10}),
    Example("tensor_scalar", {"data": A}, f32([3, 5], [7, 9]), {"operand0": 2.0, "op1": "add", "operand1": 1.0}),
    Example(
        "tensor_scalar",
        {"data": A},
        f32([1, 0.5], [1 / 3, 0.25]),
        {"op0": "divide", "operand0": 1.0, "reverse0": True},
    ),
    Example("tensor_scalar", {"data": f32([-1, 2])}, f32([1, 2]), {"op0": "abs", "operand0": None}),
    Example(
        "tensor_scalar",
        {"data": f32([3, 15])},
        f32([0.5, 0.25]),
        {"op0": "add", "operand0": 1.0, "op1": "rsqrt", "operand1": None},
    ),
    Example("tensor_scalar", {"data": u8([3, 12])}, u8([12, 48]), {"op0": "left_shift", "operand0": 2}, "uint8"),
    Example("tensor_scalar", {"data": u8([3, 12])}, u8([252, 243]), {"op0": "invert", "operand0": None}, "uint8"),
    # scalar_tensor_tensor
    Example("scalar_tensor_tensor", {"data": A, "operand1": B}, f32([12, 24], [36, 48]), {"operand0": 2.0}),
    Example(
        "scalar_tensor_tensor",
        {"data": A, "operand0": f32([1], [2]), "operand1": B},
        f32([10, 19], [29, 38]),
        {"op0": "subtract", "op1": "subtract", "reverse1": True, "reverse0": False},
    ),
    Example(
        "scalar_tensor_tensor",
        {"data": A, "operand0": f32([1], [2]), "operand1": B},
        f32([0, -20], [-30, -80]),
        {"op0": "subtract", "op1": "multiply", "reverse0": True},
    ),
    # tensor_reduce
    Example("tensor_reduce", {"data": A}, f32([3], [7])),
    Example("tensor_reduce", {"data": A}, f32([-2], [-4]), {"op": "maximum", "negate": True}),
    Example("tensor_reduce", {"data": f32([10, 3, 2])}, f32([5]), {"op": "subtract"}),
    Example("tensor_reduce", {"data": f32([[1, 2], [3, 4]])}, f32([3, 7])),
    Example("tensor_reduce", {"data": f32([[1, 2], [3, 4]])}, f32([24]), {"op": "multiply", "axes": 2}),
    Example("tensor_reduce", {"data": u8([5, 6, 8])}, u8([15]), {"op": "bitwise_or"}, "uint8"),
    Example("tensor_reduce", {"data": f32([5])}, f32([1]), {"op": "logical_or"}),
    # reciprocal
    Example("reciprocal", {"data": f32([4, -0.5, 0, -INF])}, f32([0.25, -2, INF, -0.0])),
    # iota and affine_select: value = offset + p * channel_multiplier + sum of index * step
    Example("iota", {}, f32([5, 6, 7], [15, 16, 17]), {"pattern": ((1, 3),), "offset": 5, "channel_multiplier": 10}),
    Example("iota", {}, i32([[0, 1], [4, 5]]), {"pattern": ((4, 2), (1, 2))}, "int32"),
    Example("iota", {}, i32([2147483647, -2147483648]), {"pattern": ((1, 2),), "offset": 2147483647}, "int32"),
    Example(
        "affine_select",
        {"on_true": f32([1, 2, 3], [4, 5, 6])},
        f32([1, -9, -9], [4, 5, -9]),
        {"pattern": ((-1, 3),), "channel_multiplier": 1, "on_false": -9.0},
    ),
    Example(
        "affine_select",
        {"on_true": i32([16777217, 2])},
        i32([16777217, 0]),
        {"pattern": ((1, 2),), "cmp_op": "is_equal"},
        "int32",
    ),
    Example(
        "affine_select",
        {"on_true": i32([3, 2])},
        f32([3, 0.5]),
        {"pattern": ((1, 2),), "cmp_op": "is_equal", "on_false": 0.5},
    ),
    # select_reduce
    Example(
        "select_reduce",
        {"predicate": u8([1, 0], [0, 2]), "on_true": A},
        f32([1, -1], [-1, 4]),
        {"on_false": -1.0},
        more={"reduce_res": f32([1], [4])},
    ),
    Example(
        "select_reduce",
        {"predicate": u8([1, 0], [0, 2]), "on_true": A, "on_false": f32([8], [9])},
        f32([8, 2], [3, 9]),
        {"reverse_pred": True},
    ),
    # tensor_copy_predicated
    Example("tensor_copy_predicated", {"src": A, "predicate": u8([1, 0], [0, 1])}, f32([1, 20], [30, 4]), held=B),
    Example(
        "tensor_copy_predicated",
        {"predicate": u8([1, 0], [0, 1])},
        f32([10, 5], [5, 40]),
        {"src": 5.0, "reverse_pred": True},
        held=B,
    ),
    Example(
        "tensor_copy_predicated",
        {"src": i32([16777217]), "predicate": u8([1])},
        i32([16777217]),
        into="int32",
        held=i32([0]),
    ),
    # dropout
    Example("dropout", {"data": A}, A),
    Example("dropout", {"data": A}, f32([0, 0], [0, 0]), {"prob": 1.0}),
    Example("dropout", {"data": A, "prob": f32([0], [1])}, f32([1, 2], [0, 0])),
    # dma_copy: row-major order, gather
    Example("dma_copy", {"src": f32([1, 2, 3, 4])}, A),
    Example("dma_copy", {"src": i32([16777217])}, i32([16777217]), into="int32"),
    Example("dma_copy", {"src": f32([1.5])}, f32([1.5]).astype(BF16), into="bfloat16"),
    Example("dma_copy", {"src": A, "index": i32([1], [0], [1])}, f32([3, 4], [1, 2], [3, 4])),
    Example(
        "dma_copy",
        {"src": A, "index": i32([1], [0])},
        f32([3, 4], [1, 2], [9, 9]),
        {"indirect": "dst"},
        held=f32([0, 0], [0, 0], [9, 9]),
    ),
    Example(
        "dma_copy",
        {"src": B, "index": i32([1])},
        f32([9, 9], [10, 20], [30, 40]),
        {"indirect": "dst", "per_row": False},
        held=f32([9, 9], [0, 0], [0, 0]),
    ),
    Example("dma_copy", {"src": f32([1], [2], [3], [4]), "index": i32([2])}, f32([3], [4]), {"per_row": False}),
    # rows that do not exist may be left out, on either side
    Example(
        "dma_copy",
        {"src": A, "index": i32([5], [0])},
        f32([9, 9], [1, 2]),
        {"oob_mode": "skip"},
        held=f32([9, 9], [9, 9]),
    ),
    Example(
        "dma_copy",
        {"src": A, "index": i32([-1], [0])},
        f32([3, 4]),
        {"oob_mode": "skip", "indirect": "dst"},
        held=f32([9, 9]),
    ),
    Example(
        "dma_copy",
        {"src": i32([16777217]), "index": i32([0])},
        i32([16777217]),
        {"indirect": "dst"},
        "int32",
        held=i32([0]),
    ),
    # nc_matmul: two rows of the contraction in each partition; an identity moves past data
    Example(
        "nc_matmul",
        {"stationary": f32([[1, 2], [3, 4]]), "moving": f32([[5, 6, 7], [8, 9, 10]])},
        f32([29, 33, 37], [42, 48, 54]),
        {"perf_mode": "double_row"},
    ),
    Example(
        "nc_matmul",
        {"stationary": f32([NAN, 2], [3, INF]), "moving": f32([1, 0], [0, 1])},
        f32([NAN, 3], [2, INF]),
        {"is_transpose": True},
    ),
    Example(
        "nc_matmul",
        {"stationary": f32([1.0]), "moving": f32([2.0**-9])},
        f32([1]).astype(BF16),
        {"accumulate": True},
        "bfloat16",
        held=f32([1]).astype(BF16),
    ),
    # nc_matmul_mx: one group of 8 partitions by 4 ones and twos, scaled by 2 and by 4; 32 products
    Example(
        "nc_matmul_mx",
        {
            "stationary": np.full((8, 2), 0x3C3C3C3C, np.uint32),
            "moving": np.full((8, 1), 0x40404040, np.uint32),
            "stationary_scale": u8([128, 127]),
            "moving_scale": u8([129]),
        },
        f32([512], [256]),
        {"stationary_format": "float8_e5m2_x4", "moving_format": "float8_e4m3fn_x4"},
    ),
    Example(
        "nc_matmul_mx",
        {
            "stationary": np.full((8, 1), 0x2222, np.uint16),
            "moving": np.full((8, 1), 0xA222, np.uint16),
            "stationary_scale": (f32([1]), "float8_e8m0fnu"),
            "moving_scale": (f32([1]), "float8_e8m0fnu"),
        },
        f32([17]),
        {"stationary_format": "float4_e2m1fn_x4", "moving_format": "float4_e2m1fn_x4", "accumulate": True},
        held=f32([1]),
    ),
    # quantize_mx: 448 / 2**2 keeps room above (Emax - 1 = 7, floor(log2 448) = 8: the scale is 2)
    Example(
        "quantize_mx",
        {"src": np.tile(f32([448, 1, 0, -2]), (8, 1))},
        np.full((8, 1), 0xB8_00_30_76, np.uint32),
        {"dst_format": "float8_e4m3fn_x4"},
        "float8_e4m3fn_x4",
        more={"dst_scale": u8([128])},
    ),
    # without headroom the scale is 1, 448 just fits, and 511 is cut off
    Example(
        "quantize_mx",
        {"src": np.tile(f32([448, 511, 0, -2]), (8, 1))},
        np.full((8, 1), 0xC0_00_7E_7E, np.uint32),
        {"dst_format": "float8_e4m3fn_x4", "headroom": 0},
        "float8_e4m3fn_x4",
        more={"dst_scale": u8([127])},
    ),
    Example(
        "quantize_mx",
        {"src": np.zeros((8, 4), np.float32)},
        np.zeros((8, 1), np.uint32),
        {"dst_format": "float8_e5m2_x4"},
        "float8_e5m2_x4",
        more={"dst_scale": u8([0])},
    ),
    # dma_transpose
    Example("dma_transpose", {"src": f32([1, 2, 3], [4, 5, 6])}, f32([1, 4], [2, 5], [3, 6])),
    Example(
        "dma_transpose",
        {"src": f32([[1, 2], [3, 4]], [[5, 6], [7, 8]])},
        f32([[1, 5], [3, 7]], [[2, 6], [4, 8]]),
        {"axes": (2, 1, 0)},
    ),
    Example(
        "dma_transpose",
        {"src": f32([[[1, 2]], [[3, 4]]])},
        f32([[[1]], [[3]]], [[[2]], [[4]]]),
        {"axes": (3, 1, 2, 0)},
    ),
    Example("dma_transpose", {"src": A, "index": np.array([[1, 0], [0, 0]], np.uint32)}, f32([3, 1, 1], [4, 2, 2])),
    # dma_compute
    Example("dma_compute", {"src0": A, "src1": B, "src2": f32([1, 1], [1, 1])}, f32([12, 23], [34, 45])),
    Example(
        "dma_compute",
        {"src0": A, "index": i32([2], [0])},
        f32([13, 24], [30, 40], [51, 62]),
        {"indirect": "dst"},
        held=f32([10, 20], [30, 40], [50, 60]),
    ),
    Example("dma_compute", {"src0": B, "index": i32([1])}, f32([31, 42]), {"indirect": "src"}, held=f32([1, 2])),
    # activation: accumulators
    Example(
        "activation",
        {"data": A},
        A,
        {"reduce_cmd": "reduce"},
        held=f32([0, 0], [0, 0]),
        more={"reduce_res": f32([13], [27]), "accumulators": f32([13], [27])},
        kept={"accumulators": f32([10], [20])},
    ),
    Example(
        "activation",
        {"data": A},
        A,
        {"reduce_cmd": "idle"},
        more={"reduce_res": f32([10], [20]), "accumulators": f32([10], [20])},
        kept={"accumulators": f32([10], [20])},
    ),
    Example(
        "activation",
        {"data": A},
        A,
        {"reduce_cmd": "reset"},
        more={"accumulators": f32([0], [0])},
        kept={"accumulators": f32([10], [20])},
    ),
    Example(
        "activation_reduce", {"data": A}, f32([1, 4], [9, 16]), {"op": "square"}, more={"reduce_res": f32([5], [25])}
    ),
    # activate2
    Example(
        "activate2",
        {"data": A},
        f32([3, 1], [-1, -3]),
        {"op0": "multiply", "imm0": 2.0, "op1": "subtract", "imm1": 5.0, "reverse1": True},
    ),
    Example(
        "activate2",
        {"data": f32([-2, 3])},
        f32([-0.5, 3]),
        {"op": "prelu", "relu_param": 0.25},
        more={"reduce_res": f32([2.5]), "accumulators": f32([2.5])},
        kept={"accumulators": f32([1])},
    ),
    Example(
        "activate2", {"data": f32([-4, 3])}, f32([-4, 3]), {"reduce_op": "abs_max"}, more={"reduce_res": f32([-4])}
    ),
    Example(
        "activate2",
        {"data": A},
        A,
        {"reduce_op": "min", "reduce_cmd": "reset"},
        more={"accumulators": f32([INF], [INF])},
        kept={"accumulators": f32([1], [1])},
    ),
    # exponential, range_select, select_reduce: accumulators of VectorE
    Example(
        "exponential", {"src": f32([2, -INF]), "max_value": f32([2])}, f32([1, 0]), more={"reduce_res": f32([1])}
    ),
    Example(
        "exponential",
        {"src": f32([0, 0])},
        f32([1, 1]),
        {"reduce_cmd": "load_reduce", "reduce_init": 5.0},
        more={"reduce_res": f32([7])},
    ),
    Example(
        "exponential",
        {"src": f32([0])},
        f32([1]),
        {"reduce_cmd": "idle"},
        more={"accumulators": f32([NAN])},
        kept={"accumulators": f32([3])},
    ),
    Example(
        "range_select",
        {"on_true_tile": f32([1, 2, 3, 4]), "bound0": f32([11]), "bound1": f32([13])},
        f32([FP32_MIN, 2, 3, FP32_MIN]),
        {"range_start": 10},
        more={"reduce_res": f32([3])},
    ),
    Example(
        "range_select",
        {"on_true_tile": f32([1, 2]), "bound0": f32([5]), "bound1": f32([9])},
        f32([-INF, -INF]).astype(BF16),
        {"comp_op0": "equal"},
        "bfloat16",
        more={"reduce_res": f32([FP32_MIN])},
    ),
    Example(
        "select_reduce",
        {"predicate": u8([1, 0]), "on_true": f32([4, 9])},
        f32([4, -1]),
        {"on_false": -1.0, "reduce_cmd": "reduce"},
        more={"reduce_res": f32([7]), "accumulators": f32([7])},
        kept={"accumulators": f32([7])},
    ),
    # tensor_scalar_reduce and tensor_scalar_cumulative
    Example(
        "tensor_scalar_reduce",
        {"data": A, "operand0": f32([1], [2])},
        f32([2, 3], [5, 6]),
        {"op0": "add", "reduce_res_negate": True},
        more={"reduce_res": f32([-5], [-11])},
    ),
    Example(
        "tensor_scalar_reduce",
        {"data": A},
        f32([2, 4], [6, 8]),
        {"operand0": 2.0, "reduce_op": "max", "reduce_cmd": "load_reduce", "reduce_init": 7.0},
        more={"reduce_res": f32([7], [8])},
    ),
    Example("tensor_scalar_cumulative", {"src": f32([1, 2, 3])}, f32([2, 6, 12]), {"imm0": 2.0}),
    Example(
        "tensor_scalar_cumulative",
        {"src": f32([1, 2, 3]), "imm1": f32([10])},
        f32([-9, 11, -8]),
        {"op0": "add", "imm0": 0.0, "op1": "subtract", "reduce_cmd": "load_reduce"},
    ),
    Example(
        "tensor_scalar_cumulative",
        {"src": f32([1, 5, 3])},
        f32([4, 5, 5]),
        {"op0": "bypass", "imm0": 0.0, "op1": "max", "reduce_cmd": "reduce"},
        more={"accumulators": f32([5])},
        kept={"accumulators": f32([4])},
    ),
    # tensor_tensor_scan: x = a x + b
    Example(
        "tensor_tensor_scan", {"data0": f32([2, 3, 4]), "data1": f32([1, 1, 1])}, f32([3, 10, 41]), {"initial": 1.0}
    ),
    Example(
        "tensor_tensor_scan",
        {"data0": f32([2, 3]), "data1": f32([1, 1]), "initial": f32([5])},
        f32([-2, 6]),
        {"op0": "subtract", "reverse0": True, "op1": "subtract", "reverse1": True},
    ),
    # tensor_tensor: 32-bit integers through float32 where that is enough
    Example(
        "tensor_tensor",
        {"data1": i32([16777217]), "data2": i32([1])},
        i32([16777216]),
        {"exact": False, "op": "max"},
        "int32",
    ),
    Example(
        "tensor_scalar",
        {"data": f32([-3, 4])},
        f32([0, 16]),
        {"op0": "relu", "operand0": None, "op1": "square", "operand1": None},
    ),
    Example("tensor_scalar", {"data": f32([4, -0.5])}, f32([0.25, -2]), {"op0": "reciprocal", "operand0": None}),
    # across partitions
    Example("tensor_partition_reduce", {"data": A}, f32([4, 6])),
    Example("tensor_partition_reduce", {"data": A}, f32([2, 3]), {"op": "average"}),
    Example("tensor_partition_reduce", {"data": u8([1, 2], [4, 2])}, u8([5, 2]), {"op": "bitwise_or"}, "uint8"),
    Example(
        "nc_stream_shuffle",
        {"src": f32([1], [2], [3])},
        f32([3], [9], [1]),
        {"shuffle_mask": (2, 255, 0) + (0,) * 29},
        held=f32([8], [9], [10]),
    ),
    # statistics
    Example("bn_stats", {"data": f32([1, 10, 3, 20])}, f32([2, 2, 2, 2, 15, 50])),
    Example("bn_stats", {"data": f32([7])}, f32([1, 7, 0, 0, 0, 0])),
    Example("bn_aggr", {"data": f32([2, 2, 2, 2, 15, 50])}, f32([8.5, 55.25])),
    # gathers
    Example(
        "nc_n_gather",
        {"data": f32([[1, 2], [3, 4]], [[5, 6], [7, 8]]), "indices": np.array([[3, 0], [1, 1]], np.uint32)},
        f32([4, 1], [6, 6]),
    ),
    Example(
        "local_gather",
        {"src_buffer": np.tile(f32([10, 20, 30, 40]), (16, 1)), "index": np.arange(16, dtype=np.uint16)[:, None] % 3},
        np.tile(f32([10, 20, 20, 30, 30, 40]), (16, 1)),
        {"num_elem_per_idx": 2, "num_valid_indices": 3},
    ),
    # searches
    Example("max8", {"src": f32([3, 1, 9, 9, 2, 8, 7, 6, 5, NAN])}, f32([9, 9, 8, 7, 6, 5, 3, 2])),
    Example(
        "nc_find_index8",
        {"data": f32([5, 7, 5, 1, 0, 0, 0, 0]), "vals": f32([5, 5, 5, 1, 9, 7, 0, 0])},
        np.array([[0, 2, 0xFFFF, 3, 0xFFFF, 1, 4, 5]], np.uint16),
        into="uint16",
    ),
    Example(
        "nc_match_replace8",
        {"data": f32([1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]), "vals": f32([3, *[8] * 7])},
        f32([1, 2, -1, 4, *[-1] * 7]),
        {"imm": -1.0},
        more={"dst_idx": np.array([[2, 10, 9, 8, 7, 6, 5, 4]], np.uint32)},
    ),
    Example(
        "sequence_bounds",
        {"segment_ids": i32([0, 1, 1, 2, 2, 2, 0, 3, 3])},
        i32([[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]),
        into="int32",
    ),
    Example(
        "nonzero_with_count",
        {"src": f32([0, 1, 1, 0, 0, 1, 0, 0])},
        i32([17, 18, 21, -1, -1, -1, -1, -1, 3]),
        {"index_offset": 16},
        "int32",
        held=i32([0] * 9),
    ),
    # generators: what is set is what is got
    Example("rand_set_state", {"src_seeds": WORDS}, WORDS, into="uint32", name_of_dst="state"),
    Example("rand_get_state", {"state": WORDS}, WORDS, into="uint32"),
    Example("core_barrier", {}, A, name_of_dst="data", held=A),
    Example("sendrecv", {"src": A, "received": B}, B),
    # registers
    Example("register_alloc", {}, i32([-5]), {"x": -5}, "int32"),
    Example("register_alloc", {}, np.array([[0xFFFFFFFF]], np.uint32), into="uint32"),
    Example("register_move", {"src": i32([7])}, i32([7]), into="int32"),
    Example("register_move", {}, i32([16777217]), {"src": 16777217}, "int32"),
    Example("register_load", {"src": np.array([[-3]], np.int8)}, i32([-3]), into="int32"),
    Example("register_store", {"src": i32([-1])}, np.array([[65535]], np.uint16), into="uint16"),
    # formats that hold several values move whole
    Example("memset", {}, np.zeros((1, 2), np.uint32), into="float8_e4m3fn_x4"),
    Example(
        "tensor_copy",
        {"src": np.array([[0xDEADBEEF]], np.uint32)},
        np.array([[0xDEADBEEF]], np.uint32),
        into="float8_e5m2_x4",
    ),
    Example(
        "tensor_copy",
        {"src": f32([448, 464, 465, -1e9])},
        f32([448, 448, NAN, NAN]).astype(ml_dtypes.float8_e4m3fn),
        into="float8_e4m3fn",
    ),
]


def check_example(example: Example) -> None:
    """Raise AssertionError unless the instruction leaves exactly these bits."""
    main, want = example.name_of_dst, np.asarray(example.want)
    dst: dict[str, Any] = {main: (want.shape if example.held is None else example.held, example.into)}
    for name, value in example.more.items():
        dst[name] = (example.kept.get(name, value.shape), from_numpy(value.dtype))
    got = compute(example.name, dst, example.src, **example.attrs)
    for name, value in {main: want, **example.more}.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_array_equal(got[name].astype(np.float64), value.astype(np.float64))  # which knows every NaN
        if value.dtype.kind == "f":
            numbers = ~np.isnan(value)  # the sign of a NaN says nothing
            np.testing.assert_array_equal(np.signbit(got[name][numbers]), np.signbit(value[numbers]))


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"{i}-{e.name}" for i, e in enumerate(EXAMPLES)])
def test_example(example: Example) -> None:
    """The bits of the table are what the instruction leaves."""
    check_example(example)


def test_every_instruction_has_an_example() -> None:
    """The table covers the whole set; random bits, topk and collectives (tests/nki) have tests of their own."""
    own_tests = {"rng", "rand2", "set_rng_seed", "topk"}
    own_tests |= {name for name, instr in isa.REGISTRY.items() if isinstance(instr, CollectiveInstruction)}
    assert {e.name for e in EXAMPLES} | own_tests == set(isa.REGISTRY)


def test_topk_reads_and_writes_snakes() -> None:
    """Element e of a group is on partition e % 16, column e // 16; so is result e. The rest stays as it was."""
    lists = [[(37 * e + group) % 100 for e in range(40)] for group in range(2)]
    src, k = np.full((32, 3), -1, np.float32), 18
    for group, numbers in enumerate(lists):
        for e, number in enumerate(numbers):
            src[16 * group + e % 16, e // 16] = number
    held = np.full((32, k), 99, np.float32).astype(BF16), np.full((32, k), 7, np.uint32)
    dst = {"val_dst": (held[0], "bfloat16"), "idx_dst": (held[1], "uint32")}
    got = compute("topk", dst, {"src": (src.astype(BF16), "bfloat16")}, n=40)
    values, places = held[0].astype(np.float32), held[1].copy()
    for group, numbers in enumerate(lists):
        best = sorted(range(40), key=lambda e: (numbers[e], e))[-k:]
        assert len(set(numbers)) == 40, "no ties"
        for rank, e in enumerate(best):
            values[16 * group + rank % 16, rank // 16] = numbers[e]
            places[16 * group + rank % 16, rank // 16] = e
    np.testing.assert_array_equal(got["val_dst"].astype(np.float32), values)
    np.testing.assert_array_equal(got["idx_dst"], places)


@pytest.mark.parametrize("words", [2, 6, 24])
def test_generators_carry_on(words: int) -> None:
    """Two draws in a row are one long draw; another seed, or another lane, draws other numbers."""
    state = compute("set_rng_seed", {"state": ((4, words), "uint32")}, {"src_seeds": np.array([[5]], np.uint32)})[
        "state"
    ]
    first = compute("rng", {"dst": ((4, 8), "uint32"), "state": (state, "uint32")}, {})
    second = compute("rng", {"dst": ((4, 8), "uint32"), "state": (first["state"], "uint32")}, {})
    both = compute("rng", {"dst": ((4, 16), "uint32"), "state": (state, "uint32")}, {})
    np.testing.assert_array_equal(np.concatenate([first["dst"], second["dst"]], axis=1), both["dst"])
    np.testing.assert_array_equal(second["state"], both["state"])
    assert len(set(both["dst"].ravel().tolist())) == 64
    other = compute("set_rng_seed", {"state": ((4, words), "uint32")}, {"src_seeds": np.array([[6]], np.uint32)})[
        "state"
    ]
    assert not (other[:, 0] == state[:, 0]).any()


def test_gpsimd_draws_xorwow() -> None:
    """A state of six words gives the generator's own numbers."""
    state = np.arange(1, 7, dtype=np.uint32)[None]
    got = compute("rng", {"dst": ((1, 5), "uint32"), "state": (state, "uint32")}, {})
    numbers, after = xorwow.draw(state, 5)
    np.testing.assert_array_equal(got["dst"], numbers)
    np.testing.assert_array_equal(got["state"], after)


def test_rand2_is_uniform_in_its_range() -> None:
    """Every number lies in the range of its row, and tenths of it are met equally often (chi-square, 5 sigma)."""
    low, high = np.float32([[-1], [5]]), np.float32([[1], [6]])
    got = compute("rand2", {"dst": ((2, 20000), "float32")}, {"min": low, "max": high}, seed=3)["dst"]
    assert ((got >= low) & (got < high)).all()
    for row, (a, b) in enumerate(zip(low[:, 0], high[:, 0])):
        counts = np.histogram(got[row], bins=10, range=(float(a), float(b)))[0]
        assert abs(((counts - 2000) ** 2 / 2000).sum() - 9) < 5 * np.sqrt(18)


def test_sendrecv_needs_the_other_core() -> None:
    """What arrives is handed in by whoever runs both cores; without them the instruction cannot run."""
    with pytest.raises(RunError, match="no other core"):
        compute("sendrecv", {"dst": ((2, 2), "float32")}, {"src": A})


def test_random_bits_depend_on_seed_and_place_only() -> None:
    """Same seed, same bits, at any width; a seed per row gives each row bits of its own."""
    wide = compute("rng", {"dst": ((2, 8), "uint32")}, {}, seed=3)["dst"]
    np.testing.assert_array_equal(compute("rng", {"dst": ((2, 8), "uint32")}, {}, seed=3)["dst"], wide)
    assert not np.array_equal(compute("rng", {"dst": ((2, 8), "uint32")}, {}, seed=4)["dst"], wide)
    narrow = compute("rng", {"dst": ((2, 8), "uint8")}, {}, seed=3)["dst"]
    np.testing.assert_array_equal(narrow, wide & 0xFF)
    rows = compute("rng", {"dst": ((2, 8), "uint32")}, {"seed": np.array([[3], [4]], np.uint32)})["dst"]
    np.testing.assert_array_equal(rows[0], wide[0])
    assert not np.array_equal(rows[1], wide[1])


def test_dropout_drops_the_share_it_is_asked_for() -> None:
    """Of 131072 elements the dropped share is within five standard deviations of the probability."""
    data = np.ones((128, 1024), np.float32)
    for prob in (0.1, 0.5, 0.9):
        kept = compute("dropout", {"dst": (data.shape, "float32")}, {"data": data}, prob=prob, seed=7)["dst"]
        deviation = np.sqrt(prob * (1 - prob) / data.size)
        assert abs((kept == 0).mean() - prob) < 5 * deviation


def test_an_element_at_the_probability_is_kept() -> None:
    """Dropped is what lies below: with probability equal to an element's own fraction, that element stays."""
    bits = compute("rng", {"dst": ((1, 1), "uint32")}, {}, seed=7)["dst"][0, 0]
    fraction = float(bits >> np.uint32(8)) / 2**24
    for prob, want in ((fraction, 5.0), (fraction + 2.0**-24, 0.0)):
        assert compute("dropout", {"dst": ((1, 1), "float32")}, {"data": f32([5])}, prob=prob, seed=7)["dst"] == want


def test_a_row_that_does_not_exist_is_an_error() -> None:
    """A gather reads no row before the first or after the last."""
    for row in (-1, 2):
        with pytest.raises(IndexError, match="table of 2 rows"):
            compute("dma_copy", {"dst": ((1, 2), "float32")}, {"src": A, "index": i32([row])})
