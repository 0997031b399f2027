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


A, B = f32([1, 2], [3, 4]), f32([10, 20], [30, 40])
EXAMPLES = [
    # nc_matmul: K = 2 rows, A.T @ B
    Example("nc_matmul", {"stationary": A, "moving": B}, f32([100, 140], [140, 200])),
    Example(
        "nc_matmul", {"stationary": A, "moving": B}, f32([101, 141], [141, 201]), {"accumulate": True},
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
    Example("activation", {"data": f32([-INF, INF])}, f32([0, INF]), {"op": "gelu"}),
    Example("activation", {"data": f32([-INF, INF])}, f32([0, 1]), {"op": "gelu_apprx_tanh_dx"}),
    Example("activation", {"data": f32([-INF, INF])}, f32([0, INF]), {"op": "silu"}),
    Example("activation", {"data": f32([0.5, 1.5])}, i32([0, 2]), into="int32"),
    # the sum is of the results before they are rounded to dst
    Example("activation", {"data": f32([1.001, 1])}, f32([1, 1]).astype(BF16), into="bfloat16",
            more={"reduce_res": f32([2.001])}),
    # tensor_copy
    Example("tensor_copy", {"src": A}, A),
    Example("tensor_copy", {"src": i32([16777217])}, i32([16777217]), into="int32"),
    Example("tensor_copy", {"src": i32([16777217])}, f32([16777216])),
    Example("tensor_copy", {"src": f32([0.5, 1.5, 2.5, -0.5, 300, -300, NAN])}, u8([0, 2, 2, 0, 255, 0, 0]),
            into="uint8"),
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
    Example("tensor_tensor", {"data1": f32([1, NAN, 3]), "data2": f32([2, 1, NAN])}, f32([2, NAN, NAN]),
            {"op": "max"}),
    Example("tensor_tensor", {"data1": A, "data2": f32([2, 2], [3, 3])}, f32([1, 4], [27, 64]), {"op": "power"}),
    Example("tensor_tensor", {"data1": f32([5, -5]), "data2": f32([3, 3])}, f32([2, -2]), {"op": "mod"}),
    Example("tensor_tensor", {"data1": A, "data2": f32([1, 3], [3, 3])}, f32([1, 0], [1, 1]), {"op": "is_ge"}),
    Example("tensor_tensor", {"data1": f32([0, 2, 0]), "data2": f32([0, 1, 5])}, f32([0, 1, 0]),
            {"op": "logical_and"}),
    Example("tensor_tensor", {"data1": u8([12, 255]), "data2": u8([10, 15])}, u8([8, 15]), {"op": "bitwise_and"},
            "uint8"),
    Example("tensor_tensor", {"data1": i32([1, -1]), "data2": i32([3, 4])}, i32([8, -16]), {"op": "left_shift"},
            "int32"),
    # there is no arithmetic right shift: zeros enter from above
    Example("tensor_tensor", {"data1": i32([-1, 8]), "data2": i32([28, 3])}, i32([15, 1]), {"op": "right_shift"},
            "int32"),
    Example("tensor_tensor", {"data1": i32([5]), "data2": i32([32])}, i32([0]), {"op": "left_shift"}, "int32"),
    # two 32-bit integers: exact, and wrapping
    Example("tensor_tensor", {"data1": i32([16777217, 2147483647]), "data2": i32([2, 1])},
            i32([16777219, -2147483648]),
            into="int32"),
    Example("tensor_tensor", {"data1": i32([16777217]), "data2": i32([16777216])}, i32([1]), {"op": "is_gt"},
            "int32"),
    # tensor_scalar
    Example("tensor_scalar", {"data": A}, f32([3, 6], [9, 12]), {"operand0": 3.0}),
    Example("tensor_scalar", {"data": A, "operand0": f32([2], [3])}, f32([2, 4], [9, 12])),
    Example("tensor_scalar", {"data": A}, f32([9, 8], [7, 6]), {"op0": "subtract", "operand0": 10, "reverse0": True}),
    Example("tensor_scalar", {"data": A}, f32([-9, -8], [-7, -6]), {"op0": "subtract", "operand0": 10}),
    Example("tensor_scalar", {"data": A}, f32([3, 5], [7, 9]), {"operand0": 2.0, "op1": "add", "operand1": 1.0}),
    Example("tensor_scalar", {"data": A}, f32([1, 0.5], [1 / 3, 0.25]),
            {"op0": "divide", "operand0": 1.0, "reverse0": True}),
    Example("tensor_scalar", {"data": f32([-1, 2])}, f32([1, 2]), {"op0": "abs", "operand0": None}),
    Example("tensor_scalar", {"data": f32([3, 15])}, f32([0.5, 0.25]),
            {"op0": "add", "operand0": 1.0, "op1": "rsqrt", "operand1": None}),
    Example("tensor_scalar", {"data": u8([3, 12])}, u8([12, 48]), {"op0": "left_shift", "operand0": 2}, "uint8"),
    Example("tensor_scalar", {"data": u8([3, 12])}, u8([252, 243]), {"op0": "invert", "operand0": None}, "uint8"),
    # scalar_tensor_tensor
    Example("scalar_tensor_tensor", {"data": A, "operand1": B}, f32([12, 24], [36, 48]), {"operand0": 2.0}),
    Example("scalar_tensor_tensor", {"data": A, "operand0": f32([1], [2]), "operand1": B}, f32([10, 19], [29, 38]),
            {"op0": "subtract", "op1": "subtract", "reverse1": True, "reverse0": False}),
    Example("scalar_tensor_tensor", {"data": A, "operand0": f32([1], [2]), "operand1": B}, f32([0, -20], [-30, -80]),
            {"op0": "subtract", "op1": "multiply", "reverse0": True}),
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
    Example("affine_select", {"on_true": f32([1, 2, 3], [4, 5, 6])}, f32([1, -9, -9], [4, 5, -9]),
            {"pattern": ((-1, 3),), "channel_multiplier": 1, "on_false": -9.0}),
    Example("affine_select", {"on_true": i32([16777217, 2])}, i32([16777217, 0]),
            {"pattern": ((1, 2),), "cmp_op": "is_equal"}, "int32"),
    Example("affine_select", {"on_true": i32([3, 2])}, f32([3, 0.5]),
            {"pattern": ((1, 2),), "cmp_op": "is_equal", "on_false": 0.5}),
    # select_reduce
    Example("select_reduce", {"predicate": u8([1, 0], [0, 2]), "on_true": A}, f32([1, -1], [-1, 4]),
            {"on_false": -1.0},
            more={"reduce_res": f32([1], [4])}),
    Example("select_reduce", {"predicate": u8([1, 0], [0, 2]), "on_true": A, "on_false": f32([8], [9])},
            f32([8, 2], [3, 9]), {"reverse_pred": True}),
    # tensor_copy_predicated
    Example("tensor_copy_predicated", {"src": A, "predicate": u8([1, 0], [0, 1])}, f32([1, 20], [30, 4]), held=B),
    Example("tensor_copy_predicated", {"predicate": u8([1, 0], [0, 1])}, f32([10, 5], [5, 40]),
            {"src": 5.0, "reverse_pred": True}, held=B),
    Example("tensor_copy_predicated", {"src": i32([16777217]), "predicate": u8([1])}, i32([16777217]), into="int32",
            held=i32([0])),
    # dropout
    Example("dropout", {"data": A}, A),
    Example("dropout", {"data": A}, f32([0, 0], [0, 0]), {"prob": 1.0}),
    Example("dropout", {"data": A, "prob": f32([0], [1])}, f32([1, 2], [0, 0])),
    # dma_copy: row-major order, gather
    Example("dma_copy", {"src": f32([1, 2, 3, 4])}, A),
    Example("dma_copy", {"src": i32([16777217])}, i32([16777217]), into="int32"),
    Example("dma_copy", {"src": f32([1.5])}, f32([1.5]).astype(BF16), into="bfloat16"),
    Example("dma_copy", {"src": A, "index": i32([1], [0], [1])}, f32([3, 4], [1, 2], [3, 4])),
]  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"{i}-{e.name}" for i, e in enumerate(EXAMPLES)])
def test_example(example: Example) -> None:
    """The bits of the table are what the instruction leaves."""
    want = np.asarray(example.want)
    dst: dict[str, Any] = {"dst": (want.shape if example.held is None else example.held, example.into)}
    dst |= {name: (value.shape, "float32") for name, value in example.more.items()}
    got = compute(example.name, dst, example.src, **example.attrs)
    for name, value in {"dst": want, **example.more}.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_array_equal(got[name], value)
        if value.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(got[name]), np.signbit(value))


def test_every_instruction_has_an_example() -> None:
    """The table covers the whole set; random bits have a test of their own."""
    assert {e.name for e in EXAMPLES} | {"rng"} == set(isa.REGISTRY)


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
