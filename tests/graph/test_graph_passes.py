# SPDX-License-Identifier: Apache-2.0
"""Clean-up passes: a golden example per rule, what they must leave alone, and that meaning never changes."""

import itertools

import numpy as np
import pytest
from graph_samples import every_op, random_graph, random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.parse import parse
from trnlab.graph.passes import PASSES, simplify
from trnlab.graph.passes.shapes import holds_exactly
from trnlab.graph.text import to_text
from trnlab.graph.verify import verify
from trnlab.numerics.dtypes import ALL, bfloat16, bool_, float32

HEAD = "graph @g(%x: tensor<4x6xfloat32>, %y: tensor<4x6xfloat32>, %p: tensor<4x6xbool>, %h: tensor<4x6xbfloat16>, "
HEAD += "%i: tensor<4x6xint32>) {\n"


def text(*lines, result=None):
    """A graph whose last line is its output; `F` stands for the usual shape."""
    body = "\n".join(f"  {line.replace('F32', 'tensor<4x6xfloat32>')}" for line in lines)
    return f'{HEAD}{body}\n  return {result or lines[-1].split(" ")[0]} as "out"\n}}\n'


def simplified(*lines):
    """What is left of some ops: their lines, without the result types, and the name of the output."""
    graph = parse(text(*lines))
    arrays = random_inputs(graph)
    before = interpret(graph, arrays)
    simplify(graph)
    verify(graph)
    for old, new in zip(before, interpret(graph, arrays)):
        np.testing.assert_array_equal(np.asarray(old, np.float64), np.asarray(new, np.float64))
    *ops, returned = to_text(graph).splitlines()[7:-1]
    return [op.strip().split(" : ")[0] for op in ops], returned.split()[1]


C = "%c = constant {} : F32"
BOOL = "tensor<4x6xbool>"
IDENTITIES = {
    "x + -0": (C.format("-0.0"), "%r = add %x, %c : F32"),
    "-0 + x": (C.format("-0.0"), "%r = add %c, %x : F32"),
    "x - 0": (C.format("0.0"), "%r = subtract %x, %c : F32"),
    "x * 1": (C.format("1.0"), "%r = multiply %x, %c : F32"),
    "x / 1": (C.format("1.0"), "%r = divide %x, %c : F32"),
    "x ^ 1": (C.format("1.0"), "%r = power %x, %c : F32"),
    "--x": ("%a = negate %x : F32", "%r = negate %a : F32"),
    "max(x, x)": ("%r = maximum %x, %x : F32",),
    "max(x, -inf)": (C.format("-inf"), "%r = maximum %x, %c : F32"),
    "min(inf, x)": (C.format("inf"), "%r = minimum %c, %x : F32"),
    "select(true, x, y)": ("%t = constant true : " + BOOL, "%r = select %t, %x, %y : F32"),
    "select(false, y, x)": ("%t = constant false : tensor<bool>", "%r = select %t, %y, %x : F32"),
    "select(p, x, x)": ("%r = select %p, %x, %x : F32",),
    "reshape to itself": ("%r = reshape %x : F32",),
    "reshape there and back": ("%a = reshape %x : tensor<24xfloat32>", "%r = reshape %a : F32"),
    "transpose twice": (
        "%a = transpose %x {permutation = [1, 0]} : tensor<6x4xfloat32>",
        "%r = transpose %a {permutation = [1, 0]} : F32",
    ),
    "broadcast to itself": ("%r = broadcast_in_dim %x {broadcast_dimensions = [0, 1]} : F32",),
    "whole slice": ("%r = slice %x {start_indices = [0, 0], limit_indices = [4, 6], strides = [1, 1]} : F32",),
    "concatenate of one": ("%r = concatenate %x {dimension = 0} : F32",),
    "no padding": (
        "%c = constant 1.0 : tensor<float32>",
        "%r = pad %x, %c {edge_padding_low = [0, 0], edge_padding_high = [0, 0], interior_padding = [0, 0]} : F32",
    ),
    "slice of a concatenate": (
        "%a = concatenate %y, %x {dimension = 0} : tensor<8x6xfloat32>",
        "%r = slice %a {start_indices = [4, 0], limit_indices = [8, 6], strides = [1, 1]} : F32",
    ),
    "concatenate of all slices": (
        "%a = slice %x {start_indices = [0, 0], limit_indices = [4, 2], strides = [1, 1]} : tensor<4x2xfloat32>",
        "%b = slice %x {start_indices = [0, 2], limit_indices = [4, 6], strides = [1, 1]} : tensor<4x4xfloat32>",
        "%r = concatenate %a, %b {dimension = 1} : F32",
    ),
    "reduce of nothing": ("%r = reduce %x {dimensions = [], kind = add} : F32",),
    "split and join of a dimension of size 1": (
        "%a = reshape %x : tensor<4x1x6xfloat32>",
        "%b = transpose %a {permutation = [1, 0, 2]} : tensor<1x4x6xfloat32>",
        "%r = reduce %b {dimensions = [0], kind = maximum} : F32",
    ),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_identities_vanish(name):
    assert simplified(*IDENTITIES[name]) == ([], "%x")


REWRITES = {
    "x + -y": (("%a = negate %y : F32", "%r = add %x, %a : F32"), ["%r = subtract %x, %y"]),
    "x - -y": (("%a = negate %y : F32", "%r = subtract %x, %a : F32"), ["%r = add %x, %y"]),
    "-0 - x": ((C.format("-0.0"), "%r = subtract %c, %x : F32"), ["%r = negate %x"]),
    "x + 0 stays": ((C.format("0.0"), "%r = add %x, %c : F32"), ["%c = constant 0.0", "%r = add %x, %c"]),
    "0 - x stays": ((C.format("0.0"), "%r = subtract %c, %x : F32"), ["%c = constant 0.0", "%r = subtract %c, %x"]),
    "x ^ 0.5 stays": ((C.format("0.5"), "%r = power %x, %c : F32"), ["%c = constant 0.5", "%r = power %x, %c"]),
    "i + 0": (
        (
            "%c = constant 0 : tensor<4x6xint32>",
            "%a = add %i, %c : tensor<4x6xint32>",
            "%r = negate %a : tensor<4x6xint32>",
        ),
        ["%r = negate %i"],
    ),
    "x * -1": ((C.format("-1.0"), "%r = multiply %x, %c : F32"), ["%r = negate %x"]),
    "-(x - y) stays": (
        ("%a = subtract %x, %y : F32", "%r = negate %a : F32"),
        ["%a = subtract %x, %y", "%r = negate %a"],
    ),
    "x ^ 2": ((C.format("2.0"), "%r = power %x, %c : F32"), ["%r = multiply %x, %x"]),
    "x ^ 0": ((C.format("0.0"), "%r = power %x, %c : F32"), ["%r = constant 1.0"]),
    "x ^ 0.5": ((C.format("0.5"), "%a = abs %x : F32", "%r = power %a, %c : F32"), ["%a = abs %x", "%r = sqrt %a"]),
    "x ^ -1": ((C.format("-1.0"), "%r = power %x, %c : F32"), ["%0 = constant 1.0", "%r = divide %0, %x"]),
    "x / 8": ((C.format("8.0"), "%r = divide %x, %c : F32"), ["%0 = constant 0.125", "%r = multiply %x, %0"]),
    "x / 3 stays": ((C.format("3.0"), "%r = divide %x, %c : F32"), ["%c = constant 3.0", "%r = divide %x, %c"]),
    "x - x stays": (("%r = subtract %x, %x : F32",), ["%r = subtract %x, %x"]),
    "x * 0 stays": ((C.format("0.0"), "%r = multiply %x, %c : F32"), ["%c = constant 0.0", "%r = multiply %x, %c"]),
    "i * 0": (
        ("%c = constant 0 : tensor<4x6xint32>", "%r = multiply %i, %c : tensor<4x6xint32>"),
        ["%c = constant 0"],
    ),
    "not x == y": (
        (f"%a = compare %x, %y {{comparison_direction = EQ}} : {BOOL}", f"%r = not %a : {BOOL}"),
        ["%r = compare %x, %y {comparison_direction = NE}"],
    ),
    "not x < y stays": (
        (f"%a = compare %x, %y {{comparison_direction = LT}} : {BOOL}", f"%r = not %a : {BOOL}"),
        ["%a = compare %x, %y {comparison_direction = LT}", "%r = not %a"],
    ),
    "select of not": ((f"%a = not %p : {BOOL}", "%r = select %a, %x, %y : F32"), ["%r = select %p, %y, %x"]),
    "p and true, or true": (
        (f"%t = constant true : {BOOL}", f"%a = and %p, %t : {BOOL}", f"%r = xor %a, %t : {BOOL}"),
        ["%r = not %p"],
    ),
    "splats fold": (
        (
            "%a = constant 3.0 : tensor<99x99xfloat32>",
            "%b = multiply %a, %a : tensor<99x99xfloat32>",
            "%r = slice %b {start_indices = [0, 0], limit_indices = [4, 6], strides = [1, 1]} : F32",
        ),
        ["%r = constant 9.0"],
    ),
    "maximum of a splat": (
        (
            "%a = constant 3.0 : tensor<99x99xfloat32>",
            "%r = reduce %a {dimensions = [0, 1], kind = maximum} : tensor<float32>",
        ),
        ["%r = constant 3.0"],
    ),
    "small arrays fold": (
        ("%a = constant [1, 2, 3] : tensor<3xint32>", "%r = add %a, %a : tensor<3xint32>"),
        ["%r = constant [2, 4, 6]"],
    ),
    "transposes compose": (
        (
            "%a = reshape %x : tensor<2x3x4xfloat32>",
            "%b = transpose %a {permutation = [1, 2, 0]} : tensor<3x4x2xfloat32>",
            "%r = transpose %b {permutation = [0, 2, 1]} : tensor<3x2x4xfloat32>",
        ),
        ["%a = reshape %x", "%r = transpose %a {permutation = [1, 0, 2]}"],
    ),
    "broadcasts compose": (
        (
            "%a = broadcast_in_dim %x {broadcast_dimensions = [1, 2]} : tensor<3x4x6xfloat32>",
            "%r = broadcast_in_dim %a {broadcast_dimensions = [0, 2, 3]} : tensor<3x5x4x6xfloat32>",
        ),
        ["%r = broadcast_in_dim %x {broadcast_dimensions = [2, 3]}"],
    ),
    "broadcast of a reshape": (
        (
            "%a = reduce %x {dimensions = [1], kind = maximum} : tensor<4xfloat32>",
            "%b = reshape %a : tensor<4x1xfloat32>",
            "%r = broadcast_in_dim %b {broadcast_dimensions = [0, 1]} : F32",
        ),
        [
            "%a = reduce %x {dimensions = [1], kind = maximum}",
            "%r = broadcast_in_dim %a {broadcast_dimensions = [0]}",
        ],
    ),
    "slices compose": (
        (
            "%a = slice %x {start_indices = [1, 1], limit_indices = [4, 6], strides = [1, 2]} : tensor<3x3xfloat32>",
            "%r = slice %a {start_indices = [0, 1], limit_indices = [2, 3], strides = [1, 1]} : tensor<2x2xfloat32>",
        ),
        ["%r = slice %x {start_indices = [1, 3], limit_indices = [3, 6], strides = [1, 2]}"],
    ),
    "lossless convert is skipped": (
        ("%a = convert %h : F32", "%r = convert %a : tensor<4x6xbfloat16>"),
        [],
    ),
    "rounding convert stays": (
        ("%a = convert %x : tensor<4x6xbfloat16>", "%r = convert %a : F32"),
        ["%a = convert %x", "%r = convert %a"],
    ),
    "transposed operands": (
        (
            "%a = transpose %y {permutation = [1, 0]} : tensor<6x4xfloat32>",
            "%r = dot_general %x, %a {lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]} : "
            "tensor<4x4xfloat32>",
        ),
        ["%r = dot_general %x, %y {lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1]}"],
    ),
    "transposed result": (
        (
            "%a = dot_general %x, %y {lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0]} : "
            "tensor<6x6xfloat32>",
            "%r = transpose %a {permutation = [1, 0]} : tensor<6x6xfloat32>",
        ),
        ["%r = dot_general %y, %x {lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0]}"],
    ),
    "widened operands and narrowed result": (
        (
            "%a = convert %h : F32",
            "%b = dot_general %a, %a {lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0]} : "
            "tensor<6x6xfloat32>",
            "%r = convert %b : tensor<6x6xbfloat16>",
        ),
        ["%r = dot_general %h, %h {lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0]}"],
    ),
    "equal ops merge, in either order": (
        ("%a = add %x, %y : F32", "%b = add %y, %x : F32", "%r = multiply %a, %b : F32"),
        ["%a = add %x, %y", "%r = multiply %a, %a"],
    ),
    "unequal order matters": (
        ("%a = subtract %x, %y : F32", "%b = subtract %y, %x : F32", "%r = multiply %a, %b : F32"),
        ["%a = subtract %x, %y", "%b = subtract %y, %x", "%r = multiply %a, %b"],
    ),
    "zeros of different sign do not merge": (
        (
            "%a = constant [0.0, 1.0] : tensor<2xfloat32>",
            "%b = constant [-0.0, 1.0] : tensor<2xfloat32>",
            "%r = concatenate %a, %b, %a {dimension = 0} : tensor<6xfloat32>",
        ),
        ["%r = constant [0.0, 1.0, -0.0, 1.0, 0.0, 1.0]"],
    ),
    "rows at 1, 2": (
        (
            "%a = iota {iota_dimension = 1} : tensor<1x2xint32>",
            "%b = constant 1 : tensor<1x2xint32>",
            "%c = add %a, %b : tensor<1x2xint32>",
            "%r = gather %x, %c {collapsed_slice_dims = [0], index_vector_dim = 2, offset_dims = [2], "
            "slice_sizes = [1, 6], start_index_map = [0]} : tensor<1x2x6xfloat32>",
        ),
        ["%0 = slice %x {start_indices = [1, 0], limit_indices = [3, 6], strides = [1, 1]}", "%r = reshape %0"],
    ),
    "adding rows 0 to 3 of 5": (
        (
            "%a = iota {iota_dimension = 0} : tensor<4xint32>",
            "%z = constant 0.0 : tensor<5x6xfloat32>",
            "%r = scatter %z, %a, %x {inserted_window_dims = [0], index_vector_dim = 1, update_window_dims = [1], "
            "scatter_dims_to_operand_dims = [0], kind = add} : tensor<5x6xfloat32>",
        ),
        [
            "%0 = constant 0.0",
            "%r = pad %x, %0 {edge_padding_low = [0, 0], edge_padding_high = [1, 0], interior_padding = [0, 0]}",
        ],
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name):
    before, after = REWRITES[name]
    assert simplified(*before)[0] == after


def test_dead_ops_go_and_inputs_stay():
    b = GraphBuilder("g")
    x, y = b.input("x", (2,), float32), b.input("y", (2,), float32)
    b.tanh(b.exponential(y))
    b.output(b.tanh(x), "t", alias_of=y)
    simplify(b.graph)
    assert [op.name for op in b.graph.ops] == ["tanh"]
    assert (b.graph.inputs, b.graph.aliases, b.graph.output_names) == ([x, y], {0: 1}, ["t"])


def test_a_product_read_twice_is_not_made_twice():
    b = GraphBuilder("g")
    x = b.input("x", (4, 6), float32)
    product = b.matmul(x, b.transpose(x, (1, 0)))
    b.output(b.transpose(product, (1, 0)))
    b.output(b.convert(product, bfloat16))
    simplify(b.graph)
    assert [op.name for op in b.graph.ops] == ["dot_general", "transpose", "convert"]


def test_a_transpose_that_reorders_free_dimensions_is_kept():
    b = GraphBuilder("g")
    x, y = b.input("x", (2, 3, 4), float32), b.input("y", (4, 5), float32)
    b.output(b.dot_general(b.transpose(x, (1, 0, 2)), y, ((2,), (0,))))
    simplify(b.graph)
    assert [op.name for op in b.graph.ops] == ["transpose", "dot_general"]


def test_new_ops_carry_the_users_line():
    graph = every_op()
    lines = {op.loc for op in graph.ops}
    simplify(graph)
    assert {op.loc for op in graph.ops} <= lines
    assert any(op.loc for op in graph.ops)


def test_splats_are_never_filled():
    b = GraphBuilder("g")
    huge = b.multiply(b.constant(3.0, shape=(1 << 30, 1 << 30)), b.constant(2.0))
    b.output(b.slice(huge, (0, 0), (4, 6)))
    b.output(b.reduce(huge, [0, 1], "maximum"))
    simplify(b.graph)
    assert [op.attrs["value"] for op in b.graph.ops] == [6.0, 6.0]


def test_large_arrays_are_not_folded():
    b = GraphBuilder("g")
    b.output(b.add(b.constant(np.arange(4096)), 1))
    simplify(b.graph)
    assert [op.name for op in b.graph.ops] == ["constant", "constant", "add"]


@pytest.mark.parametrize("small", ALL)
@pytest.mark.parametrize("large", ALL)
def test_formats_that_hold_another_exactly(small, large):
    """By trying: 8- and 16-bit formats wholly, wider ones at their edges."""
    if small.itemsize <= 2 and small is not bool_:
        values = np.arange(256**small.itemsize, dtype=f"u{small.itemsize}").view(small.numpy)
    else:
        edges = [0, 1, -1, 2**8 + 1, 2**10 + 1, 2**11 + 1, 2**12 - 1, 2**24 + 1, 2**31 - 1]
        values = np.array([0, 1] if small is bool_ else edges, np.int64).astype(small.numpy)
    b = GraphBuilder("g")
    x = b.input("x", values.shape, small)
    b.output(x)
    b.output(b.convert(x, large))
    with np.errstate(invalid="ignore"):
        held, converted = (array.astype(np.float64) for array in interpret(b.graph, [values]))
    if small.is_float and large.is_integer:
        assert not holds_exactly(small, large)
    else:
        assert np.array_equal(held, converted, equal_nan=True) == holds_exactly(small, large)


@given(st.integers(0, 10**6))
@settings(max_examples=60, deadline=None, derandomize=True)
@pytest.mark.parametrize("run", [*PASSES[:-1], simplify], ids=lambda run: run.__name__)
def test_passes_keep_meaning(run, seed):
    graph = random_graph(seed)
    arrays, types = random_inputs(graph, seed), [v.type for v in graph.outputs]
    before = interpret(graph, arrays)
    run(graph)
    verify(graph)
    assert [v.type for v in graph.outputs] == types
    for old, new in zip(before, interpret(graph, arrays)):
        if old.dtype.kind == "f" or old.dtype == bfloat16.numpy:
            scale = np.abs(np.nan_to_num(old.astype(np.float64), posinf=0, neginf=0)).max(initial=1e-3)
            tolerance = 1e-5 if old.dtype == np.float32 else 2**-7
            np.testing.assert_allclose(
                new.astype(np.float64), old.astype(np.float64), atol=tolerance * scale, rtol=tolerance
            )
        else:
            np.testing.assert_array_equal(new, old)


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_simplify_reaches_a_fixed_point(seed):
    graph = random_graph(seed)
    simplify(graph)
    text_before = to_text(graph)
    assert simplify(graph) == 1
    assert to_text(graph) == text_before


def test_sums_over_the_batch_of_a_product_are_part_of_its_sum():
    """The gradient of a weight, the batch a dimension of its own; a sum over anything else stays."""

    def made(dims, kind="add"):
        b = GraphBuilder("test")
        x, y = b.input("x", (2, 3, 4, 5), float32), b.input("y", (2, 3, 4, 6), float32)
        product = b.dot_general(x, y, ((2,), (2,)), ((0, 1), (0, 1)))
        b.output(b.reduce(product, dims, kind))
        return b.build()

    inputs = [np.random.default_rng(i).integers(-4, 5, (2, 3, 4, n)).astype(np.float32) for i, n in ((0, 5), (1, 6))]
    for dims, kind, left in (
        ((0,), "add", 0),
        ((0, 1), "add", 0),
        ((1,), "add", 0),
        ((0, 2), "add", 1),
        ((0,), "maximum", 1),
    ):
        graph = made(dims, kind)
        after = graph.copy()
        simplify(after)
        verify(after)
        assert sum(op.name == "reduce" for op in after.ops) == left
        np.testing.assert_array_equal(interpret(after, inputs)[0], interpret(graph, inputs)[0])


def test_a_pass_runs_again_only_where_the_graph_has_changed_since():
    graph, ran, left = parse(text("%0 = negate %x : F32")), [], {"a": 0, "b": 2, "c": 1}

    def made(name):
        def run(graph):
            ran.append(name)
            left[name] -= 1
            return left[name] >= 0

        return run

    assert simplify(graph, [made(name) for name in "abc"]) == 3
    assert "".join(ran) == "abc" + "abc" + "ab"  # b changed it before the second c, which found nothing to do


@given(
    cuts=st.lists(st.integers(0, 12), min_size=2, max_size=6),
    axis=st.integers(0, 2),
    form=st.sampled_from(["pad", "concatenate", "flat"]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=150)
def test_sums_of_parts_have_their_bits(cuts, axis, form, seed):
    """Gradients of slices: parts beside each other, apart, over each other, of one axis or more; -0 becomes 0."""
    rng, shape = np.random.default_rng(seed), [3, 4, 5]
    shape[axis] = 12
    b, total, given_ = GraphBuilder("g"), None, []
    for a, c in itertools.pairwise(sorted(cuts)):
        size = [n if i != axis else c - a for i, n in enumerate(shape)]
        array = np.where(rng.random(size) < 0.3, -0.0, rng.standard_normal(size)).astype(np.float32)
        given_.append(array)
        total = _placed(b, b.input(f"x{len(given_)}", size, float32), shape, axis, a, form, total)
    graph = b.graph
    b.output(total, "out")
    before = interpret(graph, given_)
    simplify(graph)
    verify(graph)
    (got,), (want,) = interpret(graph, given_), before
    assert np.array_equal(np.asarray(got).view(np.uint32), np.asarray(want).view(np.uint32))
    assert form == "flat" or sum(op.name == "pad" for op in graph.ops) < 2


@given(
    cuts=st.lists(st.integers(1, 11), min_size=1, max_size=4, unique=True),
    picks=st.lists(st.integers(-1, 4), min_size=2, max_size=7),
    form=st.sampled_from(["pad", "concatenate", "flat"]),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=200)
def test_sums_of_parts_in_the_same_place_have_their_bits(cuts, picks, form, seed):
    """A sum of parts that lie in the same columns, in any order, with wholes of such parts among them; every zero
    keeps the sign that the sum gives it."""
    rng, shape, ends = np.random.default_rng(seed), [3, 12, 2], [0, *sorted(cuts), 12]
    b, total, given_ = GraphBuilder("g"), None, []

    def part(start, end):
        size = [3, end - start, 2]
        signs, values = rng.choice([-0.0, 0.0, 1.0], size), rng.standard_normal(size)
        given_.append(np.where(signs == 1, values, signs).astype(np.float32))
        return b.input(f"x{len(given_)}", size, float32)

    for pick in picks:
        if pick < 0:
            whole = b.concatenate([part(*each) for each in itertools.pairwise(ends)], 1)
            total = whole if total is None else b.add(whole, total)
            continue
        start, end = list(itertools.pairwise(ends))[pick % (len(ends) - 1)]
        total = _placed(b, part(start, end), shape, 1, start, form, total)
    b.output(total, "out")
    before = interpret(b.graph, given_)
    simplify(b.graph)
    verify(b.graph)
    (got,), (want,) = interpret(b.graph, given_), before
    assert np.array_equal(np.asarray(got).view(np.uint32), np.asarray(want).view(np.uint32))
    left = sum(op.name == "pad" for op in b.graph.ops)
    assert left < 2 or form == "flat" or -1 in picks[1:]  # sums of wholes stay sums


def _placed(b, x, shape, axis, start, form, total):
    """x in the place from `start` on of zeros, added to the others."""
    low, high = ([0] * 3 for _ in range(2))
    low[axis], high[axis] = start, shape[axis] - start - x.shape[axis]
    if form == "pad":
        y = b.pad(x, low, high)
    else:
        sizes = [[n if i != axis else count[axis] for i, n in enumerate(shape)] for count in (low, high)]
        first, last = (b.constant(0.0, float32, size) for size in sizes)
        y = b.concatenate([first, x, last], axis)
    if form == "flat":
        y = b.reshape(b.reshape(y, (int(np.prod(shape)),)), shape)
    return y if total is None else b.add(total, y)


def test_gradients_of_slices_are_put_side_by_side():
    """Three parts of one value, as of q, k and v: no sum of the whole is left."""
    b = GraphBuilder("g")
    parts = [b.input(name, (1, 8, 16), bfloat16) for name in "qkv"]
    padded = [b.pad(x, (i, 0, 0), (2 - i, 0, 0)) for i, x in enumerate(parts)]
    b.output(b.add(b.add(padded[2], padded[1]), padded[0]), "out")
    simplify(b.graph)
    verify(b.graph)
    (whole,) = [op for op in b.graph.ops if op.name == "concatenate"]
    assert len(whole.operands) == 3
    assert [op.result.type.size for op in b.graph.ops if op.name == "add"] == [3 * 128]
