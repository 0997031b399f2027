# SPDX-License-Identifier: Apache-2.0
"""Rotary positions are one op, computed beside the product that they turn, and by loops of many heads."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from compiled import build, error, execute, random

from trnlab import chips
from trnlab.compiler import compile
from trnlab.compiler.fusing.admission import side_by_side
from trnlab.compiler.rewriting.recognize import recognize_rotations
from trnlab.frontends.stablehlo import import_module
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.passes import simplify
from trnlab.graph.verify import verify


def halves(b, x):
    """The first and the second half of each row."""
    last, half = len(x.shape) - 1, x.shape[-1] // 2
    return b.slice_dim(x, last, 0, half), b.slice_dim(x, last, half, 2 * half)


def rotated(b, x, cos, sin, back=False):
    """x turned by angles [S, D], or back."""
    last = len(x.shape) - 1
    cosine, sine = (b.broadcast_in_dim(v, x.shape, (last - 1, last)) for v in (cos, sin))
    if back:
        low, high = halves(b, b.multiply(x, sine))
        return b.add(b.multiply(x, cosine), b.concatenate([high, b.negate(low)], last))
    low, high = halves(b, x)
    return b.add(b.multiply(x, cosine), b.multiply(b.concatenate([b.negate(high), low], last), sine))


def by_torch(x, cos, sin, back=False):
    x, cos, sin = (torch.from_numpy(np.asarray(v, np.float64)) for v in (x, cos, sin))
    if back:
        low, high = (x * sin).chunk(2, -1)
        return (x * cos + torch.cat((high, -low), -1)).numpy()
    low, high = x.chunk(2, -1)
    return (x * cos + torch.cat((-high, low), -1) * sin).numpy()


def recognized(graph):
    """All ops after recognition."""
    after = graph.copy()
    recognize_rotations(after)
    simplify(after)
    verify(after)
    return after.ops


def ops_of(graph):
    """Their names."""
    return [op.name for op in recognized(graph)]


SHAPES = [
    (2, 4, 130, 64),
    (1, 3, 40, 128),
    (1, 12, 2048, 32),
    (2, 2, 7, 256),
    (600, 32),
    (1, 64, 64),
    (3, 5, 1, 128),
    (1, 1, 1, 32),
    (1, 4, 1100, 64),
    (2, 20, 130, 24),
    (1, 32, 300, 96),
    (3, 7, 50, 80),
    (2, 3, 40, 16),
    (1, 2, 60, 512),
    (5, 9, 4),
    (5, 9, 2),
]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rotations_are_pytorchs(shape, back):
    """Whole and odd numbers of heads, one place and many, halves of one head's angles that differ."""
    inputs = [random(*shape), random(*shape[-2:], seed=1), random(*shape[-2:], seed=2)]
    graph = build(lambda b, *values: rotated(b, *values, back=back), *inputs)
    assert "trn.rotate_half" in ops_of(graph)
    assert "concatenate" not in ops_of(graph)
    assert error(execute(graph, inputs)[0], by_torch(*inputs, back=back)) < 1e-6


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_in_bfloat16_bits_are_those_of_the_graph(chip):
    """Every product is rounded, as the graph says."""
    inputs = [random(1, 8, 300, 128), random(300, 128, seed=1), random(300, 128, seed=2)]
    inputs = [x.astype(ml_dtypes.bfloat16) for x in inputs]
    graph = build(rotated, *inputs)
    got = execute(graph, inputs, chip=chip)[0]
    np.testing.assert_array_equal(got, interpret(graph, inputs)[0])


@pytest.mark.parametrize("hostile", [np.inf, -np.inf, np.nan, -0.0])
def test_hostile_values_go_where_they_belong(hostile):
    """One of them in each half; bits of zeros, too."""
    x = random(4, 64)
    x[1, 3] = x[2, 40] = hostile

    def function(b, x):
        low, high = halves(b, x)
        return b.concatenate([b.negate(high), low], 1)

    (got,) = execute(build(function, x), [x])
    expected = np.concatenate([-x[:, 32:], x[:, :32]], 1)
    np.testing.assert_array_equal(got, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(expected)[known])


@pytest.mark.parametrize("size", [514, 1024])
def test_other_sizes_are_moved(size):
    inputs = [random(2, 3, 40, size), random(40, size, seed=1), random(40, size, seed=2)]
    graph = build(rotated, *inputs)
    assert "trn.rotate_half" not in ops_of(graph)
    assert error(execute(graph, inputs)[0], by_torch(*inputs)) < 1e-6


def partly_rotated(b, x, cos, sin, width, back=False):
    """The first columns turned by angles [S, width], or back as autograd writes it, the others beside them."""
    last, size = len(x.shape) - 1, x.shape[-1]
    first, rest = b.slice_dim(x, last, 0, width), b.slice_dim(x, last, width, size)
    if not back:
        return b.concatenate([rotated(b, first, cos, sin), rest], last)
    cosine, sine = (b.broadcast_in_dim(v, first.shape, (last - 1, last)) for v in (cos, sin))
    low, high = halves(b, b.multiply(first, sine))

    def padded(v, before, after):
        shape = [0] * last
        return b.pad(v, (*shape, before), (*shape, after))

    half = width // 2
    turned = b.add(padded(b.negate(low), half, 0), padded(high, 0, half))
    first = b.add(turned, b.multiply(first, cosine))
    return b.add(padded(rest, width, 0), padded(first, 0, size - width))


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(("shape", "width"), [((2, 4, 130, 64), 16), ((1, 3, 40, 128), 32), ((3, 5, 32), 2)], ids=str)
def test_rotations_of_some_columns(shape, width, back, chip):
    inputs = [random(*shape), random(shape[-2], width, seed=1), random(shape[-2], width, seed=2)]
    graph = build(lambda b, *values: partly_rotated(b, *values, width, back), *inputs)
    assert "trn.rotate_half" in ops_of(graph)
    assert "pad" not in ops_of(graph)
    expected = np.concatenate([by_torch(inputs[0][..., :width], *inputs[1:], back=back), inputs[0][..., width:]], -1)
    got = execute(graph, inputs, chip=chip)[0]
    assert error(got, expected) < 1e-6
    np.testing.assert_array_equal(got[..., width:], inputs[0][..., width:])


@pytest.mark.parametrize("hostile", [np.inf, np.nan, -0.0])
def test_columns_that_are_not_turned_stay_as_they_are(hostile):
    inputs = [random(3, 4, 64), random(4, 16, seed=1), random(4, 16, seed=2)]
    inputs[0][0, 1, 40] = inputs[0][1, 2, 16] = hostile
    graph = build(lambda b, *values: partly_rotated(b, *values, 16), *inputs)
    assert "trn.rotate_half" in ops_of(graph)
    (got,) = execute(graph, inputs)
    assert np.isfinite(got[..., :16]).all()
    rest, known = inputs[0][..., 16:], ~np.isnan(inputs[0][..., 16:])
    np.testing.assert_array_equal(got[..., 16:], rest)
    np.testing.assert_array_equal(np.signbit(got[..., 16:])[known], np.signbit(rest)[known])


def test_what_is_nearly_a_rotation_of_some_columns_is_moved():
    """The rest of another tensor, or not what follows; halves of other columns; pads that overlap or leave a gap."""
    x, y = random(3, 40, 64), random(3, 40, 64, seed=1)
    cos, sin = random(40, 16, seed=2), random(40, 16, seed=3)

    def function(b, x, y, cos, sin):
        rest = b.slice_dim(x, 2, 16, 64)
        turned = rotated(b, b.slice_dim(x, 2, 0, 16), cos, sin)
        other = rotated(b, b.slice_dim(x, 2, 8, 24), cos, sin)
        mixed = b.concatenate([b.negate(b.slice_dim(x, 2, 24, 32)), b.slice_dim(x, 2, 0, 8)], 2)
        cosine, sine = (b.broadcast_in_dim(v, turned.shape, (1, 2)) for v in (cos, sin))
        half = b.add(b.multiply(b.slice_dim(x, 2, 0, 16), cosine), b.multiply(mixed, sine))
        pairs = (turned, b.slice_dim(y, 2, 16, 64)), (other, rest), (half, rest)
        last = b.pad(rest, (0, 0, 16), (0, 0, 0))
        sums = [b.add(b.pad(b.slice_dim(x, 2, 0, n), (0, 0, 0), (0, 0, 64 - n), (0, 0, 0)), last) for n in (10, 20)]
        rows = b.add(*(b.pad(x, (0, n, 0), (0, 40 - n, 0)) for n in (0, 40)))
        twice = b.add(b.pad(rest, (0, 0, 0), (0, 0, 16)), b.pad(rest, (0, 0, 0), (0, 0, 16)))
        return [*(b.concatenate(pair, 2) for pair in pairs), *sums, rows, twice]

    graph = build(function, x, y, cos, sin)
    assert {op.result.shape[-1] for op in recognized(graph) if op.name == "trn.rotate_half"} == {16}
    for got, expected in zip(execute(graph, [x, y, cos, sin]), interpret(graph, [x, y, cos, sin])):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_other_halves_are_moved():
    """The same half twice, halves of two tensors, both or none negated, other lengths."""
    x, y = random(40, 64), random(40, 64, seed=1)

    def function(b, x, y):
        (low, high), (_, other) = halves(b, x), halves(b, y)
        short = b.slice_dim(x, 1, 31, 63)
        pairs = [
            (b.negate(low), low),
            (b.negate(other), low),
            (b.negate(high), b.negate(low)),
            (high, low),
            (b.negate(short), low),
            (b.negate(low), high),
        ]
        return [b.concatenate(pair, 1) for pair in pairs]

    graph = build(function, x, y)
    assert "trn.rotate_half" not in ops_of(graph)
    for got, expected in zip(execute(graph, [x, y]), interpret(graph, [x, y])):
        np.testing.assert_array_equal(got, expected)


def attention_input(b, x, w, cos, sin, heads):
    """Heads [B, N, S, D] of a product x w, turned."""
    batch, length, _ = x.shape
    wide = b.dot_general(x, w, ((2,), (0,)), dt="float32")
    split = b.reshape(wide, (batch, length, heads, w.shape[1] // heads))
    return rotated(b, b.transpose(split, (0, 2, 1, 3)), cos, sin)


@pytest.mark.parametrize(("heads", "size"), [(4, 64), (3, 128), (2, 256), (12, 32)])
def test_a_product_turns_its_heads(heads, size):
    """In its epilogue where columns of a tile hold whole heads."""
    length = 200
    inputs = [random(2, length, 96), random(96, heads * size, seed=3)]
    inputs += [random(length, size, seed=s) for s in (1, 2)]
    graph = build(lambda b, *values: attention_input(b, *values, heads), *inputs)
    program = compile(graph, chips.get("trn2"), {"precision": "fp32"})
    labels = [call.label for call in program.calls]
    assert any("dot_general" in each and "rotate" in each for each in labels) is (size <= 128), labels
    x, w, cos, sin = (torch.from_numpy(v).double() for v in inputs)
    split = (x @ w).unflatten(-1, (heads, size)).transpose(1, 2).numpy()
    expected = by_torch(split, cos.numpy(), sin.numpy())
    assert error(execute(graph, inputs, chip="trn2")[0], expected) < 1e-5


def test_a_part_of_each_head():
    """As in GPT-NeoX: what is turned lies apart in memory."""
    x, cos, sin = random(1, 4, 150, 96), random(150, 32, seed=1), random(150, 32, seed=2)

    def function(b, x, cos, sin):
        part, rest = b.slice_dim(x, 3, 0, 32), b.slice_dim(x, 3, 32, 96)
        return b.concatenate([rotated(b, part, cos, sin), rest], 3)

    graph = build(function, x, cos, sin)
    assert "trn.rotate_half" in ops_of(graph)
    expected = np.concatenate([by_torch(x[..., :32], cos, sin), x[..., 32:]], 3)
    assert error(execute(graph, [x, cos, sin])[0], expected) < 1e-6


def test_after_a_norm_of_each_head():
    """As in Qwen3: the loop over rows of one head computes both."""
    x, cos, sin = random(2, 4, 90, 64), random(90, 64, seed=1), random(90, 64, seed=2)

    def function(b, x, cos, sin):
        mean = b.multiply(b.reduce(b.multiply(x, x), (3,), keepdims=True), 1 / 64)
        return rotated(b, b.multiply(x, b.rsqrt(b.add(mean, 1e-6))), cos, sin)

    graph = build(function, x, cos, sin)
    normed = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6)
    assert error(execute(graph, [x, cos, sin])[0], by_torch(normed, cos, sin)) < 1e-5


def test_a_sum_along_other_rows_is_another_loop():
    """Sums over all heads of a place, of what was turned."""
    x, cos, sin = random(1, 70, 4, 64), random(4, 64, seed=1), random(4, 64, seed=2)

    def function(b, x, cos, sin):
        y = rotated(b, x, cos, sin)
        return y, b.reduce(y, (2, 3)), b.reduce(y, (0, 1))

    y = by_torch(x, cos, sin)
    got = execute(build(function, x, cos, sin), [x, cos, sin])
    for one, expected in zip(got, (y, y.sum((2, 3)), y.sum((0, 1)))):
        assert error(one, expected) < 1e-5


@pytest.mark.parametrize(
    ("shape", "columns"),
    [((1, 2048, 32, 128), 4096), ((1, 32, 2048, 128), 4096), ((1, 8, 2048, 128), 4096), ((3, 12, 100, 64), 5 * 64)],
    ids=str,
)
def test_rows_of_a_loop_hold_several(shape, columns):
    """As many as leave rows for all partitions four times."""
    found = side_by_side(shape)
    assert np.prod(shape) % found == 0
    assert found == columns


def test_a_rotation_needs_two_halves():
    b = GraphBuilder("odd")
    x = b.input("x", (4, 33), "float32")
    with pytest.raises(Exception, match="two halves"):
        b.op("trn.rotate_half", x)


def by_halves(b, x, cos, sin, signs=(-1, 1), swapped=False):
    """Each half written out, as JAX's models have it; cosines and sines of half a row."""
    last, half = len(x.shape) - 1, (*x.shape[:-1], x.shape[-1] // 2)
    cosine, sine = (b.broadcast_in_dim(v, half, (last - 1, last)) for v in (cos, sin))
    low, high = halves(b, x)
    first, second = b.multiply(low, cosine), b.multiply(high, cosine if not swapped else sine)
    turned = b.multiply(sine, high), b.multiply(low, sine)
    results = [
        (b.add if sign > 0 else b.subtract)(kept, other) for kept, other, sign in zip((first, second), turned, signs)
    ]
    return b.concatenate(results, last)


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1)])
def test_halves_that_are_written_out(signs):
    """There and back; the bits are those of the graph."""
    inputs = [random(2, 3, 140, 64), random(140, 32, seed=1), random(140, 32, seed=2)]
    graph = build(lambda b, *values: by_halves(b, *values, signs), *inputs)
    assert "trn.rotate_half" in ops_of(graph)
    x, (cos, sin) = inputs[0], (np.concatenate([v, v], 1) for v in inputs[1:])
    got = execute(graph, inputs)[0]
    assert error(got, by_torch(x, cos, sin, back=signs == (1, -1))) < 1e-6
    np.testing.assert_array_equal(got, interpret(graph, inputs)[0])


@pytest.mark.parametrize("options", [{"signs": (1, 1)}, {"signs": (-1, -1)}, {"swapped": True}], ids=str)
def test_what_is_no_rotation_stays(options):
    """Both halves with the same sign, and a half whose factors are the other's."""
    inputs = [random(2, 3, 40, 64), random(40, 32, seed=1), random(40, 32, seed=2)]
    graph = build(lambda b, *values: by_halves(b, *values, **options), *inputs)
    assert "trn.rotate_half" not in ops_of(graph)
    assert error(execute(graph, inputs)[0], interpret(graph, inputs)[0]) < 1e-6


def test_jaxs_gradient_is_a_rotation_too():
    """As JAX's models have it, angles of places that are given as numbers."""

    def rotary(x, places):
        angles = places[..., None, None] * 10000.0 ** (-jnp.arange(0, 64, 2) / 64)
        first, second = jnp.split(x, 2, axis=-1)
        sin, cos = jnp.sin(angles), jnp.cos(angles)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def loss(x, places, weight):
        return (rotary(x, places) * weight).sum()

    x, weight = random(2, 50, 4, 64), random(2, 50, 4, 64, seed=1)
    places = np.tile(np.arange(50, dtype=np.float32), (2, 1))
    lowered = jax.jit(jax.value_and_grad(loss)).lower(x, places, weight)
    graph = import_module(lowered.compiler_ir("stablehlo"), "test").graph
    simplify(graph)
    assert ops_of(graph).count("trn.rotate_half") == 2
    got = execute(graph, [x, places, weight])
    for one, expected in zip(got, jax.value_and_grad(loss)(x, places, weight)):
        assert error(one, np.asarray(expected)) < 1e-5


def stacked(b, x, form, back=False):
    """(-b, a) of each two neighbours (a, b), or (b, -a), as models write it."""
    last, size = len(x.shape) - 1, x.shape[-1]
    if form == "strided":  # x[..., ::2] and x[..., 1::2]
        even, odd = (b.slice_dim(x, last, place, size, 2) for place in (0, 1))
        parts = [b.reshape(v, (*v.shape, 1)) for v in (even, odd)]
    else:  # x.unflatten(-1, (-1, 2)).unbind(-1)
        pairs = b.reshape(x, (*x.shape[:-1], size // 2, 2))
        parts = [b.slice_dim(pairs, last + 1, place, place + 1) for place in (0, 1)]
    if form == "moved":  # there and back, as views of heads are
        order = (1, 0, *range(2, last + 2))
        parts = [b.transpose(b.reshape(b.reshape(v, v.shape[:-1]), v.shape), order) for v in parts]
        parts = [b.transpose(v, order) for v in parts]
    even, odd = parts
    whole = [odd, b.negate(even)] if back else [b.negate(odd), even]
    return b.reshape(b.concatenate(whole, last + 1), x.shape)


def in_a_part(b, x, first, width, back=False):
    """Neighbours in columns [first, +width) of x, as slices of slices are (GPT-J's rotary_dim, CodeGen, GLM)."""
    lead = [0] * (len(x.shape) - 1)
    ends, steps = [*x.shape[:-1], first + width], [1] * len(lead) + [2]
    even, odd = (b.slice(x, [*lead, first + place], ends, steps) for place in (0, 1))
    whole = [odd, b.negate(even)] if back else [b.negate(odd), even]
    columns = [b.reshape(v, (*v.shape, 1)) for v in whole]
    return b.reshape(b.concatenate(columns, len(x.shape)), (*x.shape[:-1], width))


def by_pairs(x, back=False):
    even, odd = x[..., ::2], x[..., 1::2]
    return np.stack([odd, -even] if back else [-odd, even], -1).reshape(x.shape)


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("form", ["strided", "unbound", "moved"])
@pytest.mark.parametrize("shape", [(2, 4, 130, 64), (3, 40, 128), (2, 7, 256), (1, 300, 32)], ids=str)
@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_neighbours_turn_together(shape, form, back, chip, kind):
    """GPT-J, RoFormer, EVA-02, Flux: whole models have each of these forms, and this is what NumPy makes of them."""
    inputs = [x.astype(kind) for x in (random(*shape), random(*shape, seed=1), random(*shape, seed=2))]

    def function(b, x, cos, sin):
        return b.add(b.multiply(x, cos), b.multiply(stacked(b, x, form, back), sin))

    graph = build(function, *inputs)
    assert "trn.rotate_half" in ops_of(graph)
    assert "concatenate" not in ops_of(graph)
    x, cos, sin = inputs
    expected = (x * cos).astype(kind) + (by_pairs(x, back) * sin).astype(kind)
    np.testing.assert_array_equal(execute(graph, inputs, chip=chip)[0], expected.astype(kind))


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("first", [0, 1, 7, 32])
@pytest.mark.parametrize("width", [64, 24])
def test_neighbours_in_some_columns(first, width, back):
    inputs = [random(3, 130, 96), random(3, 130, width, seed=1)]
    graph = build(lambda b, x, sine: b.multiply(in_a_part(b, x, first, width, back), sine), *inputs)
    assert "trn.rotate_half" in ops_of(graph)
    expected = by_pairs(inputs[0][..., first : first + width], back) * inputs[1]
    np.testing.assert_array_equal(execute(graph, inputs)[0], expected)


def by_neighbours(b, x, cos, sin, signs=(-1, 1), swapped=False, strided=False, moved=False):
    """(a cos - b sin, b cos + a sin) of neighbours a and b, stacked (torchtune); cos and sin are [S, D / 2]. moved: a
    and b are slices of [B, S, H, D], each transposed by itself, as PyTorch's autograd has the way back."""
    last, half = len(x.shape) - 1, x.shape[-1] // 2
    if strided:
        starts, ends, steps = [0] * last, x.shape, [1] * last + [2]
        even, odd = (b.slice(x, [*starts, place], ends, steps) for place in (0, 1))
    else:
        whole = b.transpose(x, (0, 2, 1, 3)) if moved else x
        pairs = b.reshape(whole, (*whole.shape[:-1], half, 2))
        even, odd = (b.reshape(b.slice_dim(pairs, last + 1, p, p + 1), (*whole.shape[:-1], half)) for p in (0, 1))
    if moved:
        even, odd = (b.transpose(v, (0, 2, 1, 3)) for v in (even, odd))
    cosine, sine = (b.broadcast_in_dim(v, even.shape, (last - 1, last)) for v in (cos, sin))
    parts = []
    for sign, one, other in zip(signs, (even, odd), (odd, even)):
        terms = b.multiply(one, cosine), b.multiply(other, sine)
        parts.append(b.add(*terms) if sign > 0 else b.subtract(*terms))
    columns = [b.reshape(v, (*v.shape, 1)) for v in (parts[::-1] if swapped else parts)]
    return b.reshape(b.concatenate(columns, last + 1), x.shape)


@pytest.mark.parametrize("how", [{}, {"strided": True}, {"moved": True}], ids=str)
@pytest.mark.parametrize("signs", [(-1, 1), (1, -1)])
@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_neighbours_that_are_written_out(signs, how, kind):
    """Bits are those of the graph, whatever the angles."""
    inputs = [random(2, 4, 130, 96), random(130, 48, seed=1), random(130, 48, seed=2)]
    inputs[0][0, 1, 5, 7], inputs[0][1, 2, 9, 40], inputs[1][3, 4] = np.inf, np.nan, -0.0
    inputs = [x.astype(kind) for x in inputs]
    graph = build(lambda b, *values: by_neighbours(b, *values, signs, **how), *inputs)
    assert "trn.rotate_half" in ops_of(graph)
    assert not {"concatenate", "slice"} & {*ops_of(graph)} or "strided" in how
    got, expected = execute(graph, inputs)[0], interpret(graph, inputs)[0]
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("options", [{"signs": (1, 1)}, {"signs": (-1, -1)}, {"swapped": True}], ids=str)
def test_neighbours_that_do_not_turn_stay(options):
    inputs = [random(2, 40, 64), random(40, 32, seed=1), random(40, 32, seed=2)]
    graph = build(lambda b, *values: by_neighbours(b, *values, **options), *inputs)
    assert "trn.rotate_half" not in ops_of(graph)
    np.testing.assert_allclose(execute(graph, inputs)[0], interpret(graph, inputs)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("hostile", [np.inf, -np.inf, np.nan, -0.0, 0.0])
def test_hostile_neighbours_go_where_they_belong(hostile):
    x = random(4, 64)
    x[1, 3] = x[2, 40] = hostile
    graph = build(lambda b, x: stacked(b, x, "unbound"), x)
    assert "trn.rotate_half" in ops_of(graph)
    (got,), expected = execute(graph, [x]), by_pairs(x)
    np.testing.assert_array_equal(got, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(expected)[known])


def test_what_nearly_turns_neighbours_does_not():
    """Neighbours that change places, of two values, beside numbers, of a row in parts; halves in their places."""

    def function(b, x, y):
        (even, odd), other = ([b.slice(v, (0, p), (4, 64), (1, 2)) for p in (0, 1)] for v in (x, y))
        part = b.slice(x, (0, 1), (4, 33), (1, 1))
        pairs = [
            (even, odd),
            (b.negate(even), odd),
            (b.negate(odd), b.negate(even)),
            (b.negate(odd), other[0]),
            (b.negate(odd), b.constant(2.0, "float32", even.shape)),
            (b.constant(2.0, "float32", even.shape), even),
            (b.negate(part), b.slice(x, (0, 0), (4, 32))),
            tuple(b.negate(v) if i == 0 else v for i, v in enumerate(halves(b, x)[::-1])),
        ]
        rows = [b.concatenate([b.reshape(v, (*v.shape, 1)) for v in pair], 2) for pair in pairs]
        return b.concatenate(rows, 0)

    inputs = [random(4, 64), random(4, 64, seed=1)]
    graph = build(function, *inputs)
    assert "trn.rotate_half" not in ops_of(graph)
    np.testing.assert_array_equal(execute(graph, inputs)[0], interpret(graph, inputs)[0])
