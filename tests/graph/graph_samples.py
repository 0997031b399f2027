# SPDX-License-Identifier: Apache-2.0
"""Graphs and inputs for tests: random ones from a seed, and one with every kind of op."""

import numpy as np

from trnlab.errors import Location
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import TensorType
from trnlab.numerics.dtypes import bfloat16, bool_, dtype, float32, int32, uint32


def typed(text):
    """A TensorType from "2x3xfloat32"."""
    *sizes, name = text.split("x")
    return TensorType(tuple(map(int, sizes)), dtype(name))


def random_inputs(graph, seed=0):
    """Arrays for the inputs: normal floats rounded to their format, integers in 0..3, bools."""
    rng = np.random.default_rng(seed)
    arrays = []
    for value in graph.inputs:
        if value.dtype.is_float:
            arrays.append(rng.standard_normal(value.shape).astype(np.float32).astype(value.dtype.numpy))
        else:
            arrays.append(rng.integers(0, 2 if value.dtype is bool_ else 4, value.shape).astype(value.dtype.numpy))
    return arrays


def every_op():
    """A graph with every builder method, used where breadth matters more than sense."""
    b = GraphBuilder("every")
    x, w = b.input("x", (4, 6), float32), b.input("w", (6,), float32)
    ids, seed = b.input("ids", (2, 3), int32), b.input("seed", (2,), int32)
    q, k = b.input("q", (2, 4, 5, 8), bfloat16), b.input("k", (2, 2, 5, 8), bfloat16)
    b.loc, b.origin = Location("train.py", 3, "forward", 'y = net(x, "a")'), "aten.addmm"
    positive = b.add(b.abs(x), 0.5)
    names = (
        "negate sign exponential exponential_minus_one log log_plus_one sqrt rsqrt tanh logistic sine cosine erf atan"
        " floor ceil round_nearest_even gelu gelu_dx silu silu_dx"
    )
    unary = [getattr(b, name)(positive) for name in names.split()]
    total = unary[0]
    for value in unary[1:]:
        total = b.add(total, value)
    b.loc, b.origin = None, ""
    for name in ("subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder", "copysign"):
        total = getattr(b, name)(positive, b.add(b.abs(total), w))
    mask = b.and_(
        b.or_(b.compare(x, "LT", w), b.is_finite(x)), b.not_(b.xor(b.compare(x, "GE", 0), b.compare(x, "NE", w)))
    )
    total = b.clamp(-1, b.select(mask, total, b.gelu(x, "tanh")), b.constant(3.0))
    total = b.bitcast_convert(b.bitcast_convert(total, int32), float32)
    table = b.convert(b.concatenate([total, b.slice_dim(total, 0, 0, 4, 2)], 0), bfloat16)
    rows = b.take_rows(table, ids)
    summed = b.scatter_add_rows(ids, rows, 5)
    placed = b.put_rows(table, b.iota((4,), int32), b.convert(b.sum_rows(x, b.iota((4,), int32), 5), bfloat16))
    picked = b.take_along(b.pad(total, (1, 0), (0, 2), (0, 1)), b.constant(np.array([0, 3, 1, 2, 0], np.int32)))
    several = b.op(
        "trn.take_along", total, b.constant(np.array([[0, 5, 9], [1, 1, -1], [2, 3, 4], [5, 0, 2]], np.int32))
    )
    several = b.sum_along(several, b.constant(np.array([[0, 1, 1]] * 4, np.int32)), 2, float32)
    ends = b.constant(np.array([1, 4], np.int32))
    sums = b.op("trn.grouped_outer", x, total, ends, dtype=float32)
    own = b.op("trn.grouped_dot", x, sums, ends, dtype=float32)
    out, lse = b.attention(q, k, k, causal=True)
    grads = b.attention_backward(out, q, k, k, out, lse, causal=True)
    product = b.matmul(total, b.transpose(b.convert(table, float32), (1, 0)))
    noise = b.multiply(b.rng_uniform((4, 6), seed, first=2), b.convert(b.iota((4, 6), int32, 1), float32))
    best = b.reduce(b.optimization_barrier(b.reshape(noise, (2, -1))), [-1], "maximum", keepdims=True)
    moved = b.shift_left(b.shift_right_logical(b.shift_right_arithmetic(ids, 1), 1), 2)
    window = b.slice(q, (0, 0, 0, 0), (2, 2, 3, 3))
    slid = b.convolution(q, window, padding=((1, 0), (0, 2)), strides=(2, 1), groups=2, spread=(1, 2))
    words = b.rng_philox((3, 7), b.convert(b.concatenate([seed] * 3, 0), uint32))
    sizes = {"window": (2, 3), "window_strides": (2, 1), "padding_low": (0, 1), "places": (2, 8)}
    pooled = b.op("trn.max_pool", q, **sizes)
    spread = b.op("trn.max_pool_backward", pooled, q, **sizes)
    mean = b.op("trn.avg_pool", q, **sizes, counted=(0, 1))
    shared = b.op("trn.avg_pool_backward", mean, **sizes, divisor=3.0, size=q.shape[-2:])
    larger = b.op("trn.resize", q, rule="linear", places=(7, 5), column_scale=1.3)
    smaller = b.op("trn.resize_backward", larger, rule="linear", places=(7, 5), column_scale=1.3, size=q.shape[-2:])
    both = b.op("trn.moments", q, dimensions=(1, 3))
    shares = b.op("trn.softmax_statistics", q, dimensions=(3,))
    squares = b.op("trn.sum_of_squares", q, dimensions=(2, 3))
    rotated = b.op("trn.rotate_half", noise)
    tall = b.reshape(b.convert(noise, bfloat16), (6, 4))
    cast = {"dtype": float32, "rhs_cast": "bfloat16"}
    dims = {"lhs_contracting_dimensions": (0,), "rhs_contracting_dimensions": (0,)}
    joined = b.op("trn.dot_sum", tall, b.reshape(noise, (6, 4)), tall, b.reshape(noise, (6, 4)), **dims, **cast)
    beside = b.append("trn.dot_and_sums", (tall, tall), {"dtype": float32}).results
    results = (
        joined,
        *beside,
        both,
        shares,
        squares,
        rotated,
        total,
        summed,
        placed,
        picked,
        several,
        own,
        *grads,
        lse,
        product,
        best,
        moved,
        slid,
        words,
        pooled,
        spread,
        shared,
        smaller,
    )
    for i, value in enumerate(results):
        b.output(value, f"out {i}", alias_of=x if value is total else None)
    return b.build()


def random_graph(seed, size=30):
    """`size` random ops over float, bfloat16, integer and bool tensors, with all that clean-up passes look for."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder(f"random{seed}")
    pool = [b.input("a", (2, 3, 4), float32), b.input("b", (3, 4), float32), b.input("c", (4, 1, 3), bfloat16)]
    pool += [b.input("i", (2, 3), int32), b.input("p", (3, 4), bool_)]
    steps = (_elementwise, _constant, _shape, _move, _reduce, _dot, _convert, _index)
    while len(b.graph.ops) < size:
        x = pool[rng.integers(len(pool))]
        pool.append(steps[rng.integers(len(steps))](b, x, pool, rng))
    for i in sorted({len(pool) - 1, *rng.integers(0, len(pool), 5).tolist()}):
        b.output(pool[i])
    return b.build()


def _elementwise(b, x, pool, rng):
    y = next((v for v in pool[::-1] if v.type == x.type and v is not x), x)
    if x.dtype is bool_:
        return [b.not_(x), b.and_(x, y), b.or_(x, True), b.select(x, y, False)][rng.integers(4)]
    number = [0, 1, 2, 4][rng.integers(4)]
    if not x.dtype.is_float:
        return [b.add(x, number), b.multiply(x, y), b.maximum(x, y), b.subtract(x, y), b.clamp(-9, x, 9)][
            rng.integers(5)
        ]
    safe = b.add(b.abs(x), 1.0)
    choices = (
        lambda: b.add(x, number),
        lambda: b.add(x, b.negate(y)),
        lambda: b.multiply(x, b.tanh(y)),
        lambda: b.negate(x),
        lambda: b.negate(b.negate(x)),
        lambda: b.multiply(x, number),
        lambda: b.subtract(x, y),
        lambda: b.divide(x, 4.0),
        lambda: b.divide(x, safe),
        lambda: b.tanh(x),
        lambda: b.power(safe, [0.5, -0.5, 1.0, 2.0, -1.0, 0.0][rng.integers(6)]),
        lambda: b.maximum(x, y),
        lambda: b.select(b.compare(x, "LT", y), x, 0.0),
        lambda: b.silu(x),
        lambda: b.gelu(b.tanh(x)),
    )
    return choices[rng.integers(len(choices))]()


def _constant(b, x, pool, rng):
    if rng.integers(2):
        return b.constant(int(rng.integers(2)) if x.dtype is not bool_ else True, x.dtype, x.shape)
    return b.constant(rng.integers(0, 2, x.shape), x.dtype)


def _shape(b, x, pool, rng):
    if rng.integers(2):
        return b.reshape(x, [(-1,), (1, -1), (-1, 1)][rng.integers(3)])
    return b.transpose(x, rng.permutation(len(x.shape)).tolist())


def _move(b, x, pool, rng):
    if not x.shape:
        return b.broadcast_to(x, (2, 3))
    axis, size = int(rng.integers(len(x.shape))), x.shape
    choice = rng.integers(4)
    if choice == 0 and x.type.size < 200:
        return b.concatenate([x, x], axis)
    if choice == 1 and x.type.size < 200:
        return b.broadcast_to(x, (2, *size))
    if choice == 2:
        return b.pad(x, [0] * len(size), [int(a == axis) for a in range(len(size))], None, 0)
    start = int(rng.integers(size[axis]))
    return b.slice_dim(x, axis, start, size[axis], 1 + int(rng.integers(2)))


def _reduce(b, x, pool, rng):
    if not x.shape:
        return b.reshape(x, (1,))
    kind = "or" if x.dtype is bool_ else ("add", "maximum")[rng.integers(2)]
    return b.reduce(x, [int(rng.integers(len(x.shape)))], kind, keepdims=bool(rng.integers(2)))


def _dot(b, x, pool, rng):
    if x.dtype is bool_ or len(x.shape) < 2:
        return x
    y = b.transpose(x, rng.permutation(len(x.shape)).tolist())
    axis = int(rng.integers(len(y.shape)))
    small = b.tanh(x) if x.dtype.is_float else b.clamp(-2, x, 2)
    product = b.dot_general(small, y, ((x.shape.index(y.shape[axis]),), (axis,)), dt=x.dtype)
    return b.reduce(product, range(1, len(product.shape)))


def _convert(b, x, pool, rng):
    return b.convert(b.convert(x, float32), [bfloat16, float32, x.dtype][rng.integers(3)])


def _index(b, x, pool, rng):
    flat = b.reshape(x, (-1, x.shape[-1] if x.shape else 1))
    ids = b.iota((1, min(flat.shape[0], 2)), int32, 1)
    if rng.integers(2) or x.dtype is bool_:
        return b.take_rows(flat, ids)
    return b.scatter_add_rows(ids, b.take_rows(flat, ids), 3)
