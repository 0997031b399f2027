# SPDX-License-Identifier: Apache-2.0
"""Every option of every instruction, with a value that is not its default, on arrays that can be checked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from isa_cases import compute
from test_examples import BF16, EXAMPLES, FP32_MIN, INF, NAN, A, B, Example, check_example, f32, i32, u8

from trnlab import isa
from trnlab.isa.collectives.meeting import Meeting

TILE = {"tile_position": (64, 0), "tile_size": (64, 128)}
MX = {
    "stationary": np.full((8, 2), 0x3C3C3C3C, np.uint32),
    "moving": np.full((8, 1), 0x40404040, np.uint32),
    "stationary_scale": u8([128, 127]),
    "moving_scale": u8([129]),
}
MX_FORMATS = {"stationary_format": "float8_e5m2_x4", "moving_format": "float8_e4m3fn_x4"}
OPTIONS = [
    # a part of the array, the last of a group or not, promises about the operands: the product is the same
    Example("nc_matmul", {"stationary": A, "moving": B}, f32([100, 140], [140, 200]), TILE),
    Example("nc_matmul", {"stationary": A, "moving": B}, f32([100, 140], [140, 200]), {"stop": False}),
    Example(
        "nc_matmul",
        {"stationary": f32([1, 0], [1, 1]), "moving": B},
        f32([40, 60], [30, 40]),
        {"is_stationary_onezero": True},
    ),
    Example(
        "nc_matmul",
        {"stationary": A, "moving": f32([1, 0], [0, 1])},
        f32([1, 3], [2, 4]),
        {"is_moving_onezero": True},
    ),
    Example("nc_matmul_mx", MX, f32([512], [256]), MX_FORMATS | {"stop": False} | TILE),
    # activation_reduce takes the same scale and bias as activation
    Example(
        "activation_reduce",
        {"data": A, "bias": f32([1], [2])},
        f32([3, 5], [8, 10]),
        {"op": "copy", "scale": 2.0},
        more={"reduce_res": f32([8], [18]), "accumulators": f32([8], [18])},
        kept={"accumulators": f32([100], [100])},
    ),
    Example(
        "activation_reduce",
        {"data": A, "scale": f32([2], [3])},
        f32([4, 16], [81, 144]),
        {"op": "square"},
        more={"reduce_res": f32([20], [225])},
    ),
    Example(
        "activation_reduce",
        {"data": A},
        f32([2, 3], [4, 5]),
        {"op": "copy", "bias": 1.0},
        more={"reduce_res": f32([5], [9])},
    ),
    # activate2: both operators, with numbers and with a value per partition, either way round
    Example(
        "activate2",
        {"data": A, "imm0": f32([10], [20])},
        f32([9, 8], [17, 16]),
        {"op0": "subtract", "reverse0": True},
    ),
    Example(
        "activate2",
        {"data": A, "imm1": f32([1], [2])},
        f32([3, 5], [8, 10]),
        {"op0": "multiply", "imm0": 2.0, "op1": "add"},
    ),
    Example(
        "activate2",
        {"data": f32([-2, 3], [-4, 1]), "relu_param": f32([0.5], [0.25])},
        f32([-1, 3], [-1, 1]),
        {"op": "prelu"},
    ),
    Example(
        "tensor_scalar",
        {"data": A, "operand1": f32([10], [20])},
        f32([8, 6], [14, 12]),
        {"op0": "multiply", "operand0": 2.0, "op1": "subtract", "reverse1": True},
    ),
    Example(
        "affine_select",
        {"on_true": f32([1, 2, 3], [4, 5, 6])},
        f32([1, -9, 3], [-9, 5, 6]),
        {"pattern": ((1, 3),), "offset": -1, "channel_multiplier": 1, "cmp_op": "not_equal", "on_false": -9.0},
    ),
    # VectorE's reductions go on from what the accumulators hold, or from a value that is given
    Example(
        "exponential",
        {"src": f32([2, 3])},
        np.exp(f32([0, 1]).astype(np.float64)).astype(np.float32),
        {"max_value": 2.0},
    ),
    Example(
        "exponential",
        {"src": f32([0, 0], [0, 0]), "reduce_init": f32([5], [6])},
        f32([1, 1], [1, 1]),
        {"reduce_cmd": "load_reduce"},
        more={"reduce_res": f32([7], [8])},
    ),
    Example(
        "range_select",
        {"on_true_tile": f32([1, 2, 3, 4]), "bound0": f32([1]), "bound1": f32([2])},
        f32([FP32_MIN, FP32_MIN, 3, FP32_MIN]),
        {"comp_op0": "is_gt", "comp_op1": "is_le", "reduce_cmd": "reduce"},
        more={"reduce_res": f32([7]), "accumulators": f32([7])},
        kept={"accumulators": f32([7])},
    ),
    Example(
        "range_select",
        {"on_true_tile": f32([5, 6]), "bound0": f32([0]), "bound1": f32([1])},
        f32([5, FP32_MIN]),
        {"reduce_cmd": "idle"},
        more={"accumulators": f32([NAN])},
        kept={"accumulators": f32([3])},
    ),
    Example(
        "select_reduce",
        {"predicate": u8([1, 0]), "on_true": f32([4, 9])},
        f32([-1, 9]),
        {"on_false": -1.0, "reverse_pred": True},
        more={"reduce_res": f32([9])},
    ),
    Example(
        "tensor_scalar_reduce",
        {"data": A, "reduce_init": f32([7], [1])},
        A,
        {"operand0": 1.0, "reduce_cmd": "load_reduce"},
        more={"reduce_res": f32([10], [8]), "accumulators": f32([10], [8])},
        kept={"accumulators": f32([NAN], [NAN])},
    ),
    Example(
        "tensor_scalar_cumulative",
        {"src": f32([1, 2])},
        f32([11, 13]),
        {"op0": "add", "imm0": 0.0, "imm1": 10.0, "reduce_cmd": "load_reduce"},
    ),
    # transfers that add: up to sixteen sources, and rows that may be missing
    Example("dma_compute", {f"src{i}": f32([i, 1]) for i in range(16)}, f32([120, 16]), {"scales": (1.0,) * 16}),
    Example(
        "dma_compute",
        {"src0": A, "index": i32([5], [0])},
        f32([13, 24], [30, 40]),
        {"indirect": "dst", "oob_mode": "skip"},
        held=f32([10, 20], [30, 40]),
    ),
    # searches
    Example(
        "nc_match_replace8",
        {"data": f32([1, 2, 3, 4, 5, 6, 7, 8]), "vals": f32([8, 1, 9, 9, 9, 9, 9, 9])},
        f32([0.5, 2, 3, 4, 5, 6, 7, 0.5]),
        {"imm": 0.5},
    ),
    Example(
        "nonzero_with_count",
        {"src": f32([0, 1, 0, 1])},
        i32([1, 3, 7, 7, 2]),
        {"padding_val": 7},
        "int32",
        held=i32([0] * 5),
    ),
]

# Options that change when something happens and not what: numbers cannot show them.
HINTS = {"dge_mode", "priority", "fills"}
# Options that the hardware gives one value, and what it takes to set them otherwise has tests of its own.
FIXED = {
    ("activation", "reduce_op"),
    ("activation_reduce", "reduce_op"),
    ("activation_reduce", "reduce_cmd"),
    ("dma_compute", "reduce_op"),
    ("dma_compute", "unique_indices"),
    ("range_select", "on_false_value"),
    ("range_select", "reduce_op"),
    ("select_reduce", "reduce_op"),
    ("dma_transpose", "oob_mode"),
}
OWN_TESTS = {"rng", "rand2", "set_rng_seed", "topk", "dropout"}
OWN_TESTS |= {name for name, instr in isa.REGISTRY.items() if isinstance(instr, Meeting)}


@pytest.mark.parametrize("example", OPTIONS, ids=[f"{i}-{e.name}" for i, e in enumerate(OPTIONS)])
def test_option(example: Example) -> None:
    """The bits of the table are what the instruction leaves."""
    check_example(example)


def _given(name: str) -> dict[str, set[str]]:
    """What the tables of examples give to the options and operands of an instruction."""
    seen: dict[str, set[str]] = {}
    for example in (e for e in [*EXAMPLES, *OPTIONS] if e.name == name):
        for key, value in {**dict.fromkeys((*example.src, *example.more), "tile"), **example.attrs}.items():
            seen.setdefault(key, set()).add(str(value))
    return seen


@pytest.mark.parametrize("name", sorted(set(isa.REGISTRY) - OWN_TESTS))
def test_no_option_goes_untested(name: str) -> None:
    """Each attribute has an example with a value that is not its default, each optional operand one with a tile."""
    instr, seen = isa.REGISTRY[name], _given(name)
    for attr, default in instr.attrs.items():
        if attr not in HINTS and (name, attr) not in FIXED:
            assert seen.get(attr, set()) - {str(default)}, f"{name}: {attr} is always {default!r}"
    for spec in instr.operands:
        if spec.optional and not spec.state and not spec.index_of:
            assert "tile" in seen.get(spec.name, set()), f"{name}: operand {spec.name} is never given"


STATE = np.arange(1, 13, dtype=np.uint32).reshape(2, 6)


def test_what_is_drawn_decides_what_drops() -> None:
    """dropout and rand2 use the bits that rng would draw from the same state, the upper 24 of each word."""
    dst: dict[str, Any] = {"dst": ((2, 8), "uint32"), "state": (STATE, "uint32")}
    bits = compute("rng", dst, {})["dst"]
    fraction = (bits >> np.uint32(8)) / np.float64(1 << 24)
    data = np.ones((2, 8), np.float32)
    kept = compute("dropout", {"dst": ((2, 8), "float32"), "state": (STATE, "uint32")}, {"data": data}, prob=0.5)
    np.testing.assert_array_equal(kept["dst"], np.where(fraction < 0.5, 0, 1))
    low, high = f32([-1], [2]), f32([1], [6])
    drawn = compute("rand2", {"dst": ((2, 8), "float32"), "state": (STATE, "uint32")}, {"min": low, "max": high})[
        "dst"
    ]
    np.testing.assert_allclose(drawn, low + fraction * (high - low), rtol=1e-6, atol=1e-7)


def test_a_seed_is_a_stream_of_its_own() -> None:
    """Two seeds give two streams, the same seed the same."""
    draws = [compute("rng", {"dst": ((2, 64), "uint32")}, {}, seed=seed)["dst"] for seed in (1, 2, 1)]
    assert (draws[0] == draws[2]).all()
    assert (draws[0] != draws[1]).mean() > 0.99


def test_infinities_pass_through_a_tile_of_the_array() -> None:
    """A transpose on part of the array keeps what a product would spoil."""
    want = f32([INF, 2], [1, NAN]).T.astype(BF16)
    data = f32([INF, 2], [1, NAN]).astype(BF16)
    identity = np.eye(2, dtype=np.float32).astype(BF16)
    dst: dict[str, Any] = {"dst": ((2, 2), "bfloat16")}
    src: dict[str, Any] = {"stationary": (data, "bfloat16"), "moving": (identity, "bfloat16")}
    got = compute("nc_matmul", dst, src, is_transpose=True, **TILE)["dst"]
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
