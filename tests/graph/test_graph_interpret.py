# SPDX-License-Identifier: Apache-2.0
"""The interpreter, op by op, against NumPy, against loops written from the specification, and against PyTorch."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from graph_samples import every_op, random_inputs, typed

from trnlab.errors import GraphError
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import apply, interpret
from trnlab.graph.ir import TensorType
from trnlab.graph.ops import BINARY, UNARY
from trnlab.numerics.dtypes import bfloat16, bool_, float32, from_numpy, int32, tfloat32, uint8, uint32

RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 4)).astype(np.float32)
Y = RNG.standard_normal((3, 4)).astype(np.float32)
I = np.array([-7, -1, 0, 1, 2, 7], np.int32)
J = np.array([2, -1, 0, 3, -2, 2], np.int32)
BF16 = ml_dtypes.bfloat16


def run(name, *arrays, **attrs):
    """One op on arrays whose formats are those of the arrays."""
    types = [TensorType(a.shape, from_numpy(a.dtype)) for a in arrays]
    return apply(name, arrays, types, attrs)[0]


UNARY_NUMPY = {
    "negate": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "log": np.log,
    "log_plus_one": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "tanh": np.tanh,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "sine": np.sin,
    "cosine": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round_nearest_even": np.round,
    "erf": np.vectorize(math.erf),
    "trn.silu": lambda x: x / (1 + np.exp(-x)),
    "atan": np.arctan,
    "is_finite": np.isfinite,
}
BINARY_NUMPY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "remainder": np.fmod,
    "trn.copysign": np.copysign,
}


@pytest.mark.parametrize("name", sorted(UNARY_NUMPY))
def test_unary_against_numpy_in_float64(name):
    x = np.abs(X) if name in ("log", "sqrt", "rsqrt") else X
    np.testing.assert_allclose(run(name, x), UNARY_NUMPY[name](x.astype(np.float64)), rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("name", sorted(BINARY_NUMPY))
def test_binary_against_numpy_in_float64(name):
    x = np.abs(X) if name == "power" else X
    expected = BINARY_NUMPY[name](x.astype(np.float64), Y.astype(np.float64))
    np.testing.assert_allclose(run(name, x, Y), expected, rtol=1e-6, atol=1e-7)


def test_all_elementwise_names_are_tested():
    assert set(UNARY) - set(UNARY_NUMPY) == {"not", "trn.silu_dx"}
    integers = {"and", "or", "xor", "shift_left", "shift_right_logical", "shift_right_arithmetic"}
    assert set(BINARY) - set(BINARY_NUMPY) == integers


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("shift_left", np.int8, [-16, 0, 0, 96, -128]),
        ("shift_right_logical", np.int8, [15, 0, 0, 1, 1]),
        ("shift_right_arithmetic", np.int8, [-1, -1, -1, 1, -1]),
        ("shift_right_arithmetic", np.uint8, [15, 0, 0, 1, 1]),
    ],
)
def test_shifts_by_more_than_the_width_or_less_than_nothing(name, kind, expected):
    """Nothing is left then but zeros, or the sign: as PyTorch has it on the CPU."""
    x, by = np.array([-1, -1, -1, 3, -1]), np.array([4, 8, -1, 5, 7] if name == "shift_left" else [4, 8, -1, 1, 7])
    if kind is np.uint8:
        by[2] = 200
    assert run(name, x.astype(kind), by.astype(kind)).tolist() == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("divide", [-3, 1, -1, 0, -1, 3]),
        ("remainder", [-1, 0, 0, 1, 0, 1]),
        ("power", [49, -1, 1, 1, 0, 49]),
        ("xor", [I[i] ^ J[i] for i in range(6)]),
        ("and", [I[i] & J[i] for i in range(6)]),
        ("or", [I[i] | J[i] for i in range(6)]),
    ],
)
def test_integers_divide_toward_zero(name, expected):
    assert run(name, I, J).tolist() == expected


def test_integers_wrap():
    most = np.array([2**31 - 1], np.int32)
    assert run("add", most, np.array([1], np.int32)).tolist() == [-(2**31)]
    assert run("multiply", np.array([200], np.uint8), np.array([2], np.uint8)).tolist() == [144]


def test_bools():
    p, q = np.array([True, True, False]), np.array([True, False, False])
    assert run("and", p, q).tolist() == [1, 0, 0]
    assert run("not", p).tolist() == [0, 0, 1]
    assert run("xor", p, q).dtype == np.uint8


def test_special_values():
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    values = np.array([0.0, -0.0, inf, -inf, nan], np.float32)
    np.testing.assert_array_equal(run("logistic", values), [0.5, 0.5, 1, 0, nan])
    np.testing.assert_array_equal(run("is_finite", values), [1, 1, 0, 0, 0])
    np.testing.assert_array_equal(run("sign", values), [0, 0, 1, -1, nan])
    np.testing.assert_array_equal(run("maximum", values, np.zeros(5, np.float32)), [0, 0, inf, 0, nan])
    np.testing.assert_array_equal(run("compare", values, values, comparison_direction="EQ"), [1, 1, 1, 1, 0])
    np.testing.assert_array_equal(run("compare", values, values, comparison_direction="NE"), [0, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("direction", "compare"),
    [
        ("EQ", np.equal),
        ("NE", np.not_equal),
        ("LT", np.less),
        ("LE", np.less_equal),
        ("GT", np.greater),
        ("GE", np.greater_equal),
    ],
)
def test_compare(direction, compare):
    assert np.array_equal(run("compare", I, J, comparison_direction=direction), compare(I, J))


def test_select_and_clamp_take_scalars():
    assert np.array_equal(run("select", np.array(True), X, Y), X)
    assert np.array_equal(run("select", X > 0, X, Y), np.where(X > 0, X, Y))
    assert np.array_equal(run("clamp", np.float32(-0.5), X, np.float32(0.5)), np.clip(X, -0.5, 0.5))


def test_converts_truncate_saturate_and_round():
    floats = np.array([1.9, -1.9, 3e9, -3e9, np.nan, 300.0], np.float32)
    assert run("convert", floats, dtype=int32).tolist() == [1, -1, 2**31 - 1, -(2**31), 0, 300]
    assert run("convert", floats, dtype=uint8).tolist() == [1, 255, 0, 0, 0, 44]
    assert run("convert", floats, dtype=bool_).tolist() == [1, 1, 1, 1, 1, 1]
    assert run("convert", X, dtype=bfloat16).tolist() == X.astype(BF16).tolist()
    assert run("convert", np.float32(1 + 2**-11), dtype=tfloat32) == 1.0
    assert run("convert", np.float32(1 + 3 * 2**-11), dtype=tfloat32) == 1 + 2**-9
    assert run("bitcast_convert", np.array([-0.0, 1, 1e-40, np.nan], np.float32), dtype=uint32).tolist() == [
        0x80000000,
        0x3F800000,
        0x000116C2,
        0x7FC00000,
    ]
    assert run("convert", np.array([257], np.int32), dtype=bfloat16).tolist() == [256]


def test_every_op_rounds_to_its_format():
    x, y = X.astype(BF16), Y.astype(BF16)
    assert np.array_equal(run("multiply", x, y), (x.astype(np.float32) * y.astype(np.float32)).astype(BF16))


def test_float64_is_the_more_exact_reference():
    b = GraphBuilder("sum")
    b.output(b.reduce(b.exponential(b.input("x", (3, 4), float32)), [0, 1]))
    (exact,) = interpret(b.graph, [X], "float64")
    assert exact.dtype == np.float64
    assert exact == pytest.approx(np.exp(X.astype(np.float64)).sum(), rel=1e-14)
    assert interpret(b.graph, [X])[0].dtype == np.float32


def test_sources():
    assert run("constant", value=2.5, shape=(2, 2), dtype=float32).tolist() == [[2.5, 2.5]] * 2
    assert run("constant", value=I, shape=(6,), dtype=int32).tolist() == I.tolist()
    assert run("iota", iota_dimension=1, shape=(2, 3), dtype=int32).tolist() == [[0, 1, 2]] * 2


def test_shapes():
    assert np.array_equal(run("transpose", X, permutation=(1, 0)), X.T)
    assert np.array_equal(run("reshape", X, shape=(2, 6)), X.reshape(2, 6))
    assert np.array_equal(run("slice", X, start_indices=(1, 0), limit_indices=(3, 4), strides=(1, 3)), X[1:3, 0:4:3])
    assert np.array_equal(run("concatenate", X, Y, dimension=1), np.concatenate([X, Y], 1))
    spread = run("broadcast_in_dim", X, broadcast_dimensions=(2, 0), shape=(4, 2, 3))
    assert np.array_equal(spread, np.broadcast_to(X.T[:, None, :], (4, 2, 3)))


@pytest.mark.parametrize(("low", "high", "inside"), [*itertools.product((-1, 0, 2), (-1, 0, 1), (0, 2))])
def test_pad_against_a_loop(low, high, inside):
    """Element i of x lands at low + i (1 + inside); what lands outside is dropped."""
    x = np.arange(1, 5, dtype=np.float32)
    size = 4 + low + high + 3 * inside
    expected = np.full(size, 9, np.float32)
    for i in range(4):
        place = low + i * (1 + inside)
        if 0 <= place < size:
            expected[place] = x[i]
    attrs = {"edge_padding_low": (low,), "edge_padding_high": (high,), "interior_padding": (inside,)}
    assert run("pad", x, np.float32(9), **attrs).tolist() == expected.tolist()


@pytest.mark.parametrize("dims", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    ("kind", "function"), [("add", np.sum), ("multiply", np.prod), ("maximum", np.max), ("minimum", np.min)]
)
def test_reduce(kind, function, dims):
    np.testing.assert_allclose(run("reduce", X, dimensions=dims, kind=kind), function(X, axis=dims), rtol=1e-6)
    assert np.array_equal(run("reduce", I, dimensions=(0,), kind=kind), function(I))


def test_reduce_of_nothing_is_the_identity():
    nothing = np.zeros((0, 2), np.float32)
    found = {
        kind: run("reduce", nothing, dimensions=(0,), kind=kind).tolist() for kind in ("add", "multiply", "maximum")
    }
    assert found == {"add": [0, 0], "multiply": [1, 1], "maximum": [-np.inf] * 2}
    assert run("reduce", np.zeros((0, 1), bool), dimensions=(0,), kind="and").tolist() == [1]
    assert run("reduce", np.zeros((0, 1), np.int32), dimensions=(0,), kind="minimum").tolist() == [2**31 - 1]


def test_reduce_in_bfloat16_rounds_once():
    ones = np.full((1000,), 1.0, BF16)
    assert run("reduce", ones, dimensions=(0,), kind="add") == 1000


def test_dot_general_against_einsum():
    left, right = RNG.standard_normal((2, 5, 3, 4)), RNG.standard_normal((4, 2, 6, 3))
    found = run(
        "dot_general",
        left.astype(np.float32),
        right.astype(np.float32),
        lhs_batching_dimensions=(0,),
        rhs_batching_dimensions=(1,),
        lhs_contracting_dimensions=(3, 2),
        rhs_contracting_dimensions=(0, 3),
        dtype=float32,
    )
    np.testing.assert_allclose(found, np.einsum("bimk,kbjm->bij", left, right), rtol=1e-5, atol=1e-5)


def test_integer_products_wrap_in_int32():
    x = np.full((1, 2), 2**30, np.int32)
    attrs = {
        "lhs_batching_dimensions": (),
        "rhs_batching_dimensions": (),
        "lhs_contracting_dimensions": (1,),
        "rhs_contracting_dimensions": (1,),
        "dtype": int32,
    }
    assert run("dot_general", x, np.full((1, 2), 1, np.int32), **attrs).tolist() == [[-(2**31)]]


# -- gather and scatter: the specification's index arithmetic, as loops --------------------------------------------

GATHERS = [
    # operand, indices, offset_dims, collapsed, operand_batching, indices_batching, index_map, vector_dim, sizes
    ((9, 5), (2, 3), (2,), (0,), (), (), (0,), 2, (1, 5)),
    ((9, 5), (3, 2), (1, 2), (), (), (), (1, 0), 1, (2, 3)),
    ((4, 6, 5), (4, 3), (1,), (1,), (0,), (0,), (1,), 2, (1, 1, 5)),
    ((6, 4, 5), (1, 3, 4), (0,), (0,), (1,), (2,), (0,), 0, (1, 1, 5)),
    ((7,), (5,), (), (0,), (), (), (0,), 1, (1,)),
]


def full_starts(shape, indices, index_map, vector_dim, batching, indices_batching):
    """For each batch index, the start of its window in every operand dimension."""
    vectors = indices[..., None] if vector_dim == indices.ndim else np.moveaxis(indices, vector_dim, -1)
    axes = [a for a in range(indices.ndim) if a != vector_dim]
    for batch in np.ndindex(vectors.shape[:-1]):
        start = [0] * len(shape)
        for axis, index in zip(index_map, vectors[batch]):
            start[axis] = int(index)
        for axis, source in zip(batching, indices_batching):
            start[axis] = batch[axes.index(source)]
        yield batch, start


@pytest.mark.parametrize(("shape", "ids", "offset", "dropped", "ob", "ib", "index_map", "vector", "sizes"), GATHERS)
def test_gather_against_loops(shape, ids, offset, dropped, ob, ib, index_map, vector, sizes):
    operand, indices = RNG.standard_normal(shape).astype(np.float32), RNG.integers(-2, 11, ids).astype(np.int32)
    found = run(
        "gather",
        operand,
        indices,
        offset_dims=offset,
        collapsed_slice_dims=dropped,
        operand_batching_dims=ob,
        start_indices_batching_dims=ib,
        start_index_map=index_map,
        index_vector_dim=vector,
        slice_sizes=sizes,
    )
    places = [a for a in range(found.ndim) if a not in offset]
    for batch, start in full_starts(shape, indices, index_map, vector, ob, ib):
        start = [min(max(s, 0), n - size) for s, n, size in zip(start, shape, sizes)]
        window = operand[tuple(slice(s, s + n) for s, n in zip(start, sizes))]
        window = window.squeeze(tuple(sorted((*dropped, *ob))))
        where = [slice(None)] * found.ndim
        for place, index in zip(places, batch):
            where[place] = index
        assert np.array_equal(found[tuple(where)], window)


@pytest.mark.parametrize("kind", ["add", "assign"])
@pytest.mark.parametrize(("shape", "ids", "offset", "dropped", "ob", "ib", "index_map", "vector", "sizes"), GATHERS)
def test_scatter_against_loops(kind, shape, ids, offset, dropped, ob, ib, index_map, vector, sizes):
    operand, indices = RNG.standard_normal(shape).astype(np.float32), RNG.integers(-2, 11, ids).astype(np.int32)
    dims = {
        "offset_dims": offset,
        "collapsed_slice_dims": dropped,
        "operand_batching_dims": ob,
        "slice_sizes": sizes,
        "start_indices_batching_dims": ib,
        "start_index_map": index_map,
        "index_vector_dim": vector,
    }
    update = RNG.standard_normal(run("gather", operand, indices, **dims).shape).astype(np.float32)
    found = run(
        "scatter",
        operand,
        indices,
        update,
        update_window_dims=offset,
        inserted_window_dims=dropped,
        kind=kind,
        input_batching_dims=ob,
        scatter_indices_batching_dims=ib,
        scatter_dims_to_operand_dims=index_map,
        index_vector_dim=vector,
    )
    expected = operand.copy()
    places = [a for a in range(update.ndim) if a not in offset]
    kept = [a for a in range(len(shape)) if a not in (*dropped, *ob)]
    for batch, start in full_starts(shape, indices, index_map, vector, ob, ib):
        for inside in np.ndindex(*(update.shape[a] for a in offset)):
            at, source = list(start), [0] * update.ndim
            for axis, step in zip(kept, inside):
                at[axis] += step
            for place, index in (*zip(places, batch), *zip(offset, inside)):
                source[place] = index
            if all(0 <= a < n for a, n in zip(at, shape)):
                old = expected[tuple(at)] if kind == "add" else 0
                expected[tuple(at)] = old + update[tuple(source)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


# -- composites ---------------------------------------------------------------------------------------------------


def test_random_numbers_are_uniform_repeatable_and_separate():
    def draw(seed, first):
        types = [TensorType((2,), int32)]
        return apply("trn.rng_uniform", [np.int32([seed, 0])], types, {"shape": (300, 200), "first": first})[0]

    x = draw(1, 0)
    assert np.array_equal(x, draw(1, 0))
    assert 0 <= x.min() < x.max() < 1
    assert abs(x.mean() - 0.5) < 0.005
    assert np.abs(np.histogram(x, 16, (0, 1))[0] / 3750 - 1).max() < 0.1
    for other in (draw(2, 0), draw(1, 60_000), draw(-1, 0), np.roll(x, 1), x.reshape(200, 300).T.reshape(300, 200)):
        assert abs(np.corrcoef(x.ravel(), other.ravel())[0, 1]) < 0.02


def attention_graph(q_type, k_type, causal, bias=None):
    b = GraphBuilder("attention")
    q, k, v = (b.input(n, t.shape, t.dtype) for n, t in zip("qkv", (q_type, k_type, k_type)))
    extra = b.input("bias", bias, float32) if bias else None
    dout = b.input("dout", q.shape, q.dtype)
    out, lse = b.attention(q, k, v, extra, causal=causal)
    for value in (out, lse, *b.attention_backward(dout, q, k, v, out, lse, extra, causal=causal)):
        b.output(value)
    return b.build()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("q", "k", "causal", "bias"),
    [
        ("2x4x7x8xfloat32", "2x4x7x8xfloat32", True, None),
        ("2x4x7x8xfloat32", "2x2x9x8xfloat32", False, None),
        ("1x6x1x4xfloat32", "1x2x5x4xfloat32", False, (1, 1, 1, 5)),
        ("2x4x6x8xfloat32", "2x1x6x8xfloat32", True, (2, 1, 6, 6)),
    ],
)
def test_attention_and_its_gradients_against_torch(q, k, causal, bias):
    torch = pytest.importorskip("torch")
    graph = attention_graph(typed(q), typed(k), causal, bias)
    arrays = random_inputs(graph)
    out, lse, *grads = interpret(graph, arrays)
    q, k, v = (torch.tensor(a, requires_grad=True) for a in arrays[:3])
    groups = q.shape[1] // k.shape[1]
    mask = torch.tensor(arrays[3]) if bias else torch.zeros(1)
    if causal:
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        mask = mask + torch.zeros(later.shape).masked_fill(later, -math.inf)
    wide = [t.repeat_interleave(groups, 1) for t in (k, v)]
    scores = q @ wide[0].mT * q.shape[-1] ** -0.5 + mask
    expected = scores.softmax(-1) @ wide[1]
    expected.backward(torch.tensor(arrays[-1]))
    np.testing.assert_allclose(out, expected.detach(), atol=2e-6)
    np.testing.assert_allclose(lse, scores.logsumexp(-1).detach(), atol=2e-6)
    for found, tensor in zip(grads, (q, k, v)):
        np.testing.assert_allclose(found, tensor.grad, atol=5e-6)


@pytest.mark.torch
@pytest.mark.parametrize("approximate", ["none", "tanh", "silu"])
def test_activations_and_their_derivatives_against_torch(approximate):
    torch = pytest.importorskip("torch")
    x = np.linspace(-12, 12, 2001).astype(np.float32)
    name, attrs = ("trn.silu", {}) if approximate == "silu" else ("trn.gelu", {"approximate": approximate})
    t = torch.tensor(x.astype(np.float64), requires_grad=True)
    y = torch.nn.functional.silu(t) if not attrs else torch.nn.functional.gelu(t, **attrs)
    y.sum().backward()
    np.testing.assert_allclose(run(name, x, **attrs), y.detach(), atol=1e-6)
    np.testing.assert_allclose(run(f"{name}_dx", x, **attrs), t.grad, atol=2e-6)


@pytest.mark.torch
def test_rows_against_torch_embedding():
    torch = pytest.importorskip("torch")
    b = GraphBuilder("embedding")
    table, ids, grad = b.input("t", (9, 5), float32), b.input("i", (2, 3), int32), b.input("g", (2, 3, 5), float32)
    logits = b.take_along(table, b.constant(np.arange(9) % 5))
    for value in (b.take_rows(table, ids), b.scatter_add_rows(ids, grad, 9), logits):
        b.output(value)
    arrays = random_inputs(b.graph)
    rows, gradient, picked = interpret(b.graph, arrays)
    weight, index = torch.tensor(arrays[0], requires_grad=True), torch.tensor(arrays[1]).long()
    expected = torch.nn.functional.embedding(index, weight)
    expected.backward(torch.tensor(arrays[2]))
    assert np.array_equal(rows, expected.detach())
    np.testing.assert_allclose(gradient, weight.grad, atol=1e-6)
    assert np.array_equal(picked, arrays[0][np.arange(9), np.arange(9) % 5])


# -- graphs -------------------------------------------------------------------------------------------------------


def test_a_whole_graph_runs_and_leaves_its_inputs_alone():
    graph = every_op()
    arrays = random_inputs(graph)
    before = [a.copy() for a in arrays]
    for array, value in zip(interpret(graph, arrays), graph.outputs):
        assert array.shape == value.shape
        assert array.dtype == value.dtype.numpy
    assert all(np.array_equal(a, b) for a, b in zip(arrays, before))


def test_wrong_inputs_are_refused():
    graph = every_op()
    with pytest.raises(GraphError, match="wrong number of inputs"):
        interpret(graph, [X])
    with pytest.raises(GraphError, match="'x' has the wrong shape"):
        interpret(graph, [X[:2], *random_inputs(graph)[1:]])
