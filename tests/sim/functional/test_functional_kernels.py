# SPDX-License-Identifier: Apache-2.0
"""Each compiled kernel gives what the instruction's own definition gives, bit for bit where the operation is exact.

Shapes: one element, one partition, rows that fill half a vector register, rows longer than a block, four free
dimensions.
"""

from __future__ import annotations

import numpy as np
import pytest
from functional_bench import Bench

from trnlab.isa.alu import ALU
from trnlab.isa.base import Engine
from trnlab.numerics import dtypes
from trnlab.sim.functional import elementwise as ew
from trnlab.sim.functional.formats import COMPILED

SHAPES = [(1, 1), (1, 300), (128, 1), (128, 7), (5, 513), (32, 2, 3, 2, 5), (3, 2500)]
FLOATS = ["float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "tfloat32"]
EVERY = [d.name for d in dtypes.ALL if d.code in COMPILED]
OPERATORS = [op.name for op in ALU.values() if op.code in ew.BINARY]


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("shape", SHAPES)
def test_tensor_tensor_gives_the_same_bits(op, shape):
    t = Bench()
    t.b.tensor_tensor(dst=t.tile("d", shape), data1=t.tile("a", shape), data2=t.tile("b", shape), op=op)
    t.same_bits()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("other", ["float32", "bfloat16", "int8", "uint8"])
def test_tensor_tensor_converts_at_both_ends(dtype, other):
    t = Bench(1)
    a, b = t.tile("a", (16, 40), other), t.tile("b", (16, 40), dtype)
    t.b.tensor_tensor(dst=t.tile("d", (16, 40), dtype), data1=a, data2=b, op="multiply")
    t.b.tensor_tensor(dst=t.tile("e", (16, 40), other), data1=a, data2=b, op="add")
    t.same_bits()


def test_operands_may_be_the_destination_and_may_overlap_it():
    t = Bench()
    a, b = t.tile("a", (128, 512)), t.tile("b", (128, 512))
    t.b.tensor_tensor(dst=a, data1=a, data2=b, op="add")
    t.b.tensor_tensor(dst=b, data1=a, data2=b, op="subtract")
    t.b.tensor_tensor(dst=a[:, 1:301], data1=a[:, 0:300], data2=b[:, 5:305], op="multiply")
    t.b.scalar_tensor_tensor(dst=b, data=a, operand0=2.0, op0="multiply", operand1=b, op1="add")
    t.same_bits()


@pytest.mark.parametrize("op", [op.name for op in ALU.values() if op.code in ew.WITH_SCALAR and op.name != "rsqrt"])
@pytest.mark.parametrize("reverse", [False, True])
def test_tensor_scalar_with_numbers_and_tiles(op, reverse):
    engine = Engine.VECTOR if Engine.VECTOR in ALU[op].engines else Engine.GPSIMD
    t = Bench(2)
    s = t.tile("s", (128, 1))
    for i, shape in enumerate(SHAPES[2:6]):
        a, d = t.tile(f"a{i}", shape), t.tile(f"d{i}", shape, "bfloat16")
        scalar = s[0 : shape[0]]
        t.b.tensor_scalar(dst=d, data=a, operand0=1.5, op0=op, reverse0=reverse, engine=engine)
        t.b.tensor_scalar(
            dst=a, data=a, operand0=scalar, op0="add", operand1=scalar, op1=op, reverse1=reverse, engine=engine
        )
    t.same_bits()


@pytest.mark.parametrize(("op0", "op1"), [("subtract", "multiply"), ("divide", "max"), ("is_gt", "subtract")])
@pytest.mark.parametrize("reverse", [(False, False), (True, False), (False, True), (True, True)])
def test_scalar_tensor_tensor(op0, op1, reverse):
    t = Bench(3)
    for i, shape in enumerate(SHAPES):
        a, b, s = t.tile(f"a{i}", shape), t.tile(f"b{i}", shape, "bfloat16"), t.tile(f"s{i}", (shape[0], 1))
        t.b.scalar_tensor_tensor(
            dst=t.tile(f"d{i}", shape, "float16"),
            data=a,
            operand0=s,
            op0=op0,
            operand1=b,
            op1=op1,
            reverse0=reverse[0],
            reverse1=reverse[1],
        )
        t.b.scalar_tensor_tensor(dst=a, data=a, operand0=0.25, op0=op0, operand1=b, op1=op1)
    t.same_bits()


@pytest.mark.parametrize("source", EVERY)
@pytest.mark.parametrize("target", EVERY)
def test_tensor_copy_casts_every_format_to_every_other(source, target):
    t = Bench(4)
    info = np.array(
        [0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 65504, 65520, 1e9, -5e9, 240, 248, 57344, 61440, 2**-24]
    )
    special = np.concatenate([info, info / 3, [0.5, 1.5, 2.5, -0.5, 2**31, -(2.0**31), 2**32, 254.5, 127.5]])
    data = special if dtypes.dtype(source).is_float else None
    with np.errstate(all="ignore"):
        a = t.tile("a", (3, len(special)), source, data=None if data is None else np.tile(special, (3, 1)))
    t.b.tensor_copy(dst=t.tile("d", (3, len(special)), target), src=a)
    t.same_bits()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_copies_follow_access_patterns(dtype):
    t = Bench(5)
    a, d, e = t.tile("a", (6, 4, 5, 3), dtype), t.tile("d", (6, 3, 4, 5), dtype), t.tile("e", (6, 5, 4, 3), "float32")
    t.b.tensor_copy(dst=d, src=a.permute(2, 0, 1))
    t.b.tensor_copy(dst=e.permute(1, 0, 2), src=a)
    t.b.tensor_copy(dst=t.tile("f", (6, 2, 7), dtype), src=a[:, 0, 0, 0:2].repeat(1, 7))
    t.b.tensor_copy(dst=t.tile("g", (2, 3), dtype), src=a[0:2].with_dims((-4, 3), skip=50))
    t.b.tensor_copy(dst=d[0:2, 1], src=a[0:2, :, :, 2])
    t.same_bits()


@pytest.mark.parametrize("op", ["add", "max", "min", "multiply"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((128, 512), 1), ((7, 33), 1), ((1, 1), 1), ((4, 3, 5, 2), 2), ((9, 6, 4), 1)]
)
def test_tensor_reduce(op, shape, axes):
    t = Bench(6)
    outer = shape[1 : len(shape) - axes] or (1,)
    a = t.tile("a", shape)
    t.b.tensor_reduce(dst=t.tile("d", (shape[0], *outer)), data=a, op=op, axes=axes)
    t.b.tensor_reduce(dst=t.tile("n", (shape[0], *outer), "bfloat16"), data=a, op="max", axes=axes, negate=True)
    if op in ("max", "min"):
        t.same_bits()
    else:  # n additions in another order: at most n half units of the sum of magnitudes
        t.close("d", rtol=1e-5, atol=1e-4)


def test_reduce_of_strided_rows():
    t = Bench(7)
    a = t.tile("a", (16, 8, 4))
    t.b.tensor_reduce(dst=t.tile("d", (16, 4)), data=a.permute(1, 0), op="max")
    t.same_bits()


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("shape", SHAPES)
def test_memset(dtype, shape):
    t = Bench()
    whole = dtypes.dtype(dtype).is_integer
    t.b.memset(dst=t.tile("d", shape, dtype), value=1 if whole else 0.1)
    t.b.memset(dst=t.tile("e", shape, dtype)[0:1], value=0)
    t.same_bits()


@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16", "uint8", "uint32"])
def test_iota(dtype):
    t = Bench()
    t.b.iota(dst=t.tile("a", (128, 512), dtype), pattern=((1, 512),))
    t.b.iota(dst=t.tile("b", (9, 30), dtype), pattern=((100, 2), (-7, 5), (1, 3)), offset=-5, channel_multiplier=3)
    t.b.iota(dst=t.tile("c", (1, 1), dtype), pattern=((1, 1),), offset=2**31 - 1, channel_multiplier=2**20)
    t.same_bits()


@pytest.mark.parametrize("cmp_op", ["greater_equal", "is_gt", "is_lt", "is_le", "is_equal", "not_equal"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_affine_select(cmp_op, dtype):
    t = Bench()
    a = t.tile("a", (128, 128), dtype)
    t.b.affine_select(
        dst=t.tile("d", (128, 128), dtype),
        on_true=a,
        pattern=((-1, 128),),
        channel_multiplier=1,
        cmp_op=cmp_op,
        on_false=7.0,
    )
    t.b.affine_select(
        dst=t.tile("e", (3, 24)), on_true=t.tile("f", (3, 24)), pattern=((2, 4), (-3, 6)), offset=-2, on_false=-1e9
    )
    t.same_bits()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("predicate", ["uint8", "int16", "bool"])
def test_select_reduce(predicate, reverse):
    t = Bench(8)
    for i, shape in enumerate(SHAPES):
        p = t.tile(f"p{i}", shape, predicate, data=t.rng.integers(0, 2, shape))
        a, s = t.tile(f"a{i}", shape), t.tile(f"s{i}", (shape[0], 1))
        t.b.select_reduce(
            dst=t.tile(f"d{i}", shape, "bfloat16"),
            predicate=p,
            on_true=a,
            on_false=s,
            reverse_pred=reverse,
            reduce_res=t.tile(f"r{i}", (shape[0], 1)),
        )
        t.b.select_reduce(dst=a, predicate=p, on_true=a, on_false=-3.0, reverse_pred=reverse)
    t.same_bits()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_tensor_copy_predicated_keeps_the_rest(dtype):
    t = Bench(9)
    for i, shape in enumerate(SHAPES):
        p = t.tile(f"p{i}", shape, "uint8", data=t.rng.integers(0, 2, shape))
        t.b.tensor_copy_predicated(dst=t.tile(f"d{i}", shape, dtype), src=t.tile(f"a{i}", shape, dtype), predicate=p)
        t.b.tensor_copy_predicated(dst=t.tile(f"e{i}", shape, dtype), src=3, predicate=p, reverse_pred=True)
    t.same_bits()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_draws_the_documented_stream(dtype):
    t = Bench(10)
    for i, shape in enumerate(SHAPES):
        a = t.tile(f"a{i}", shape, dtype)
        t.b.dropout(dst=t.tile(f"d{i}", shape, dtype), data=a, prob=0.3, seed=1234)
        seeds = t.tile(f"s{i}", (shape[0], 1), "int32", data=np.arange(shape[0])[:, None] - 3)
        t.b.dropout(dst=a, data=a, prob=t.tile(f"p{i}", (shape[0], 1), data=t.rng.random((shape[0], 1))), seed=seeds)
    t.same_bits()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (128, 32), (5, 77), (64, 1)])
def test_transpose_moves_every_bit(dtype, shape):
    t = Bench(11)
    d = t.tile("d", shape[::-1], dtype, psum=True)
    t.b.nc_transpose(dst=d, data=t.tile("a", shape, dtype), engine=Engine.TENSOR)
    t.same_bits()


def test_transpose_of_strided_tiles():
    t = Bench(12)
    d, a = t.tile("d", (12, 16, 2), psum=True), t.tile("a", (16, 4, 6))
    t.b.nc_transpose(dst=d[:, :, 1], data=a[:, :, 1:4], engine=Engine.TENSOR)
    t.same_bits()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3", "tfloat32"])
@pytest.mark.parametrize(
    ("k", "m", "n"), [(128, 128, 512), (1, 1, 1), (37, 5, 33), (128, 9, 31), (64, 128, 32), (3, 8, 513 - 1)]
)
def test_matmul_adds_products_in_float32(dtype, k, m, n):
    """float32 sums of k products: the error is at most k half units of the sum of magnitudes."""
    t = Bench(13)
    a, b, d = t.tile("a", (k, m), dtype), t.tile("b", (k, n), dtype), t.tile("d", (m, n), psum=True)
    t.b.nc_matmul(dst=d, stationary=a, moving=b, stop=False)
    t.b.nc_matmul(dst=d, stationary=a, moving=b, accumulate=True)
    t.close("d", rtol=1e-5, atol=1e-4 * np.sqrt(k))


def test_matmul_notices_that_a_packed_operand_changed():
    t = Bench(14)
    a, b = t.tile("a", (128, 128)), t.tile("b", (128, 256))
    d = [t.tile(f"d{i}", (128, 128 if i < 3 else 256), psum=True) for i in range(5)]
    t.b.nc_matmul(dst=d[0], stationary=a, moving=b[:, 0:128])
    t.b.nc_matmul(dst=d[1], stationary=a, moving=b[:, 0:128])
    t.b.tensor_scalar(dst=b[:, 100:110], data=b[:, 0:10], operand0=3.0, op0="add")
    t.b.nc_matmul(dst=d[2], stationary=a, moving=b[:, 0:128])
    t.b.memset(dst=a[64:128, 5:6], value=2.0)
    t.b.nc_matmul(dst=d[3], stationary=a, moving=b)
    t.b.nc_matmul(dst=d[4][:, 0:255], stationary=a, moving=b[:, 1:256])
    for name in ("d0", "d1", "d2", "d3"):
        t.close(name, rtol=1e-5, atol=1e-3)


def test_matmul_of_strided_operands():
    t = Bench(15)
    a, b = t.tile("a", (32, 6, 8)), t.tile("b", (32, 4, 10, 3))
    d = t.tile("d", (48, 40), psum=True)
    t.b.nc_matmul(dst=d, stationary=a.permute(1, 0), moving=b[:, :, :, 1])
    t.close("d", rtol=1e-5, atol=1e-4)


def test_matmul_into_a_strided_tile_goes_through_its_definition():
    t = Bench(16)
    d = t.tile("d", (8, 16, 2), psum=True)
    t.b.nc_matmul(dst=d[:, :, 0], stationary=t.tile("a", (4, 8)), moving=t.tile("b", (4, 16)))
    assert t.run(by_definition=False)["d"].shape == (8, 16, 2)
    assert t.machine.by_meaning == 1


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_whole_numbers_beyond_float32_stay_exact(dtype):
    t = Bench(17)
    big = t.rng.integers(2**24, 2**31 - 1, (8, 20))
    a, b = t.tile("a", (8, 20), dtype, data=big), t.tile("b", (8, 20), dtype, data=big[::-1])
    t.b.tensor_tensor(dst=t.tile("d", (8, 20), dtype), data1=a, data2=b, op="subtract", engine=Engine.GPSIMD)
    t.b.tensor_tensor(dst=t.tile("e", (8, 20), dtype), data1=a, data2=b, op="bitwise_xor")
    t.b.tensor_scalar(dst=t.tile("f", (8, 20), dtype), data=a, operand0=3, op0="right_shift")
    got = t.run(by_definition=False)
    np.testing.assert_array_equal(
        got["d"].astype(np.int64), (big - big[::-1]).astype(got["d"].dtype).astype(np.int64)
    )
    np.testing.assert_array_equal(got["e"].astype(np.int64), big ^ big[::-1])
    np.testing.assert_array_equal(got["f"].astype(np.int64), big >> 3)
