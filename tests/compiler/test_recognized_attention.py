# SPDX-License-Identifier: Apache-2.0
"""Attention that is written out is found, in every form that frameworks write; what is nearly attention is not, and
in either case the graph means what it meant."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from compiled import build, execute

from trnlab.compiler.rewriting.recognize import recognize_attention
from trnlab.graph.interpret import interpret
from trnlab.graph.passes import simplify
from trnlab.graph.verify import verify
from trnlab.numerics.dtypes import bfloat16, bool_, float32, int32

B, H, T, S, D = 2, 3, 5, 7, 4
LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Form:
    """One way to write attention. layout: "heads" [B,H,T,D], "merged" [BH,T,D], "tokens" [B,T,H,D], "keys first" (the
    transposed scores)."""

    layout: str = "heads"
    scale: str = "after"
    mask: str = "causal"
    hidden: float = -math.inf
    guard: str = "plain"
    quotient: str = "divide"
    gradient: str = "rows"
    narrow: bool = False
    miss: str = ""


def scores_of(b, form, q, k, mask):
    scale = 1 / math.sqrt(D)
    if form.scale == "before":
        q = b.multiply(q, scale)
    if form.layout == "merged":
        q, k = (b.reshape(x, (B * H, *x.shape[2:])) for x in (q, k))
        s = b.reshape(b.dot_general(q, k, ((2,), (2,)), ((0,), (0,))), (B, H, T, S))
    elif form.layout == "tokens":
        q, k = (b.transpose(x, (0, 2, 1, 3)) for x in (q, k))
        s = b.dot_general(q, k, ((3,), (3,)), ((0, 2), (0, 2)))
    elif form.layout == "keys first":
        s = b.transpose(b.dot_general(k, q, ((3,), (3,)), ((0, 1), (0, 1))), (0, 1, 3, 2))
    else:
        s = b.dot_general(q, k, ((3,), (3,)), ((0, 1), (0, 1)))
    if form.scale == "after":
        s = b.multiply(s, scale)
    elif form.scale == "divide":
        s = b.divide(s, math.sqrt(D))
    visible = visible_of(b, form, mask)
    if form.mask == "bias":
        return b.add(s, b.broadcast_to(mask, s.shape)), None
    if visible is None:
        return s, None
    whole = b.broadcast_to(visible, s.shape)
    if form.mask == "added":
        return b.add(
            s, b.broadcast_to(b.select(visible, 0.0, b.constant(form.hidden, float32, visible.shape)), s.shape)
        ), None
    return b.select(whole, s, form.hidden), whole


def visible_of(b, form, mask):
    if form.mask in ("causal", "added"):
        return b.compare(b.iota((T, S), int32, 0), "GE", b.iota((T, S), int32, 1))
    if form.mask == "window":
        rows, columns = b.iota((T, S), int32, 0), b.iota((T, S), int32, 1)
        return b.compare(b.abs(b.subtract(rows, columns)), "LE", 1)
    if form.mask == "data":
        return b.compare(mask, "GT", 0.0)
    return None


def softmax_of(b, form, s):
    axis = 2 if form.miss == "softmax over queries" else 3

    def along(x):
        return b.broadcast_in_dim(x, s.shape, [d for d in range(4) if d != axis])

    highest = b.reduce(s, [axis], "maximum")
    if form.guard == "finite":
        highest = b.select(b.is_finite(highest), highest, 0.0)
    elif form.guard == "lowest":
        highest = b.maximum(highest, LOWEST)
    if form.miss == "largest of others":
        highest = b.multiply(highest, 2.0)
    e = b.exponential(b.subtract(s, along(highest)))
    z = b.reduce(e, [axis], "add")
    if form.miss == "one more in the sum":
        z = b.add(z, 1.0)
    if form.quotient == "reciprocal":
        return e, z, b.multiply(e, along(b.divide(1.0, z))), along
    return e, z, b.divide(e, along(z)), along


def attention(b, form, q, k, v, dout, mask):
    """out, dq, dk, dv as autodiff writes them, in [B,H,...]."""
    if form.narrow:
        q, k, v, dout = (b.convert(x, bfloat16) for x in (q, k, v, dout))
    s, whole = scores_of(b, form, q, k, mask)
    e, z, p, along = softmax_of(b, form, s)
    if form.miss == "dropout":
        p = b.multiply(p, b.convert(b.compare(e, "GT", 0.5), float32))
    weights = b.convert(p, q.dtype)
    kind = q.dtype
    if form.miss == "values of other keys":
        v = b.op("concatenate", b.slice_dim(v, 2, 1, S), b.slice_dim(v, 2, 0, 1), dimension=2)
    out = b.dot_general(weights, v, ((3,), (2,)), ((0, 1), (0, 1)), kind)
    extra = [p] if form.miss == "probabilities are returned" else []
    batch = ((0, 1), (0, 1))
    dv = b.dot_general(weights, dout, ((2,), (2,)), batch, kind)
    other = b.multiply(v, 2.0) if form.miss == "gradient of other values" else v
    g = b.dot_general(dout, other, ((3,), (3,)), batch)
    if form.gradient == "rows":
        ds = b.multiply(p, b.subtract(g, b.broadcast_in_dim(b.reduce(b.multiply(g, p), [3]), g.shape, (0, 1, 2))))
    else:
        row = b.negate(b.reduce(b.multiply(b.multiply(g, along(b.divide(1.0, b.multiply(z, z)))), e), [3], "add"))
        ds = b.multiply(b.add(b.divide(g, along(z)), along(row)), e)
    if form.miss == "gradient without its mean":
        ds = b.multiply(p, g)
    if form.miss == "mean over queries":
        ds = b.multiply(
            p, b.subtract(g, b.broadcast_in_dim(b.reduce(b.multiply(g, p), [2], "add"), g.shape, (0, 1, 3)))
        )
    if whole is not None:
        if form.miss == "mask on the other side":
            whole = b.not_(whole)
        ds = b.select(whole, ds, 0.0)
    if form.scale in ("after", "divide"):
        ds = b.multiply(ds, 1 / math.sqrt(D))
    if form.miss == "scale applied twice":
        ds = b.multiply(ds, 1 / math.sqrt(D))
    if form.miss == "gradient is returned":
        extra.append(ds)
    ds = b.convert(ds, kind)
    scaled = b.multiply(q, 1 / math.sqrt(D)) if form.scale == "before" else q
    dk = b.dot_general(ds, scaled, ((2,), (2,)), batch, kind)
    dq = b.dot_general(ds, k, ((3,), (2,)), batch, kind)
    if form.miss == "gradient by other keys":
        dq = b.dot_general(ds, v, ((3,), (2,)), batch, kind)
    if form.scale == "before":
        dq = b.multiply(dq, 1 / math.sqrt(D))
    return [b.convert(x, float32) for x in (out, dq, dk, dv)] + extra


def numbers(seed=0, mask="plain", size=1.0, width=D):
    """width: of values."""
    rng = np.random.default_rng(seed)
    shapes = ((T, D), (S, D), (S, width), (T, width))
    q, k, v, dout = (size * rng.standard_normal((B, H, *shape)).astype(np.float32) for shape in shapes)
    bias = rng.standard_normal((B, 1, T, S)).astype(np.float32)
    if mask == "blind queries":  # that see no key
        bias[0, 0, 2], bias[1, 0, 0] = -math.inf, -math.inf
    elif mask == "everything":
        bias = np.abs(bias)
    return [q, k, v, dout, bias]


def found_in(form, inputs):
    """The graph before, and after, with how many ops of attention it has."""
    graph = build(lambda b, *values: attention(b, form, *values), *inputs)
    simplify(graph)
    after = graph.copy()
    recognize_attention(after)
    verify(after)
    return graph, after, sum(op.name.startswith("trn.attention") for op in after.ops)


def same(graph, after, inputs, atol=1e-10):
    """In float64, where nothing but the meaning decides."""
    for got, expected in zip(interpret(after, inputs, "float64"), interpret(graph, inputs, "float64"), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=atol)


FORMS = [
    *(
        Form(layout=layout, scale=scale)
        for layout in ("heads", "merged", "tokens", "keys first")
        for scale in ("after", "before")
    ),
    *(
        Form(guard=guard, quotient=quotient)
        for guard in ("finite", "lowest")
        for quotient in ("divide", "reciprocal")
    ),
    *(
        Form(mask=mask, gradient=gradient)
        for mask in ("none", "causal", "window")
        for gradient in ("rows", "squares")
    ),
    *(Form(mask="added", hidden=hidden, scale="divide") for hidden in (-math.inf, -1e9, LOWEST)),
    *(
        Form(mask="data", hidden=hidden, gradient=g)
        for hidden in (-1e9, LOWEST, -math.inf)
        for g in ("rows", "squares")
    ),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_is_found_and_means_the_same(form):
    """Also for large scores, and where queries see no key: the average of all values, or NaN, as it was."""
    for mask, size in itertools.product(("plain", "everything", "blind queries"), (1.0, 30.0)):
        inputs = numbers(mask=mask, size=size)
        graph, after, count = found_in(form, inputs)
        assert count == 2
        assert not any(op.name == "exponential" for op in after.ops)
        same(graph, after, inputs)


@pytest.mark.parametrize("width", [1, 3, 2 * D])
@pytest.mark.parametrize("form", [*FORMS[::5], Form(mask="bias"), Form("tokens", mask="bias")], ids=str)
def test_values_of_another_width_are_found(form, width):
    """As latent attention has them, and pictures' transformers."""
    for mask, size in itertools.product(("plain", "blind queries"), (1.0, 30.0)):
        inputs = numbers(mask=mask, size=size, width=width)
        graph, after, count = found_in(form, inputs)
        assert count == 2
        same(graph, after, inputs)


@pytest.mark.parametrize("hidden", [-1.0, -1e4])
def test_numbers_that_only_weaken_are_no_mask(hidden):
    """A score of -10000 is one, beside others of that size."""
    inputs = numbers()
    graph, after, count = found_in(Form(mask="data", hidden=hidden), inputs)
    assert count == 0
    same(graph, after, inputs)


@pytest.mark.parametrize("layout", ["heads", "merged", "tokens", "keys first"])
def test_a_bias_that_does_more_than_hide_is_found(layout):
    """Queries whose bias is minus infinity throughout give NaN, as written out."""
    for form in (Form(layout, mask="bias"), Form(layout, mask="added", hidden=-1e4)):
        for mask, size in itertools.product(("plain", "everything", "blind queries"), (1.0, 30.0)):
            inputs = numbers(mask=mask, size=size)
            graph, after, count = found_in(form, inputs)
            assert count == 2
            same(graph, after, inputs)


@pytest.mark.parametrize("scale", ["none", "before", "after"])
@pytest.mark.parametrize("masked", ["", "causal", "data", "window", "added"])
def test_the_gradient_of_a_bias_is_found(masked, scale):
    """A bias of heads, summed over the batch, beside masks."""
    hidden = LOWEST if masked == "data" else -math.inf
    form = Form(mask=masked or "none", scale=scale, hidden=hidden)

    def function(b, q, k, v, dout, mask, bias):
        if scale == "before":
            q = b.multiply(q, 0.5)
        s = b.dot_general(q, k, ((3,), (3,)), ((0, 1), (0, 1)))
        s = b.add(b.multiply(s, 0.5) if scale == "after" else s, b.broadcast_to(bias, s.shape))
        visible = visible_of(b, form, mask)
        whole = None if visible is None or masked == "added" else b.broadcast_to(visible, s.shape)
        if whole is not None:
            s = b.select(whole, s, hidden)
        elif visible is not None:
            s = b.add(s, b.broadcast_to(b.select(visible, 0.0, b.constant(LOWEST, float32, (T, S))), s.shape))
        _, _, p, along = softmax_of(b, form, s)
        batch = ((0, 1), (0, 1))
        out, dv = b.dot_general(p, v, ((3,), (2,)), batch), b.dot_general(p, dout, ((2,), (2,)), batch)
        g = b.dot_general(dout, v, ((3,), (3,)), batch)
        ds = b.multiply(p, b.subtract(g, along(b.reduce(b.multiply(g, p), [3]))))
        if whole is not None:
            ds = b.select(whole, ds, 0.0)
        sums = b.reduce(ds, [0], keepdims=True), b.reduce(ds, [0, 2]), b.multiply(b.reduce(ds, [1]), 3.0)
        scaled = b.multiply(ds, 0.5) if scale == "after" else ds
        dq, dk = b.dot_general(scaled, k, ((3,), (2,)), batch), b.dot_general(scaled, q, ((2,), (2,)), batch)
        return out, dq, dk, dv, *sums

    for mask in ("plain", "blind queries") if masked == "data" else ("plain",):
        inputs = [*numbers(mask=mask), np.random.default_rng(5).standard_normal((1, H, T, S)).astype(np.float32)]
        graph = build(function, *inputs)
        simplify(graph)
        after = graph.copy()
        assert recognize_attention(after)
        verify(after)
        assert not any(op.name == "exponential" for op in after.ops)
        same(graph, after, inputs)


def test_a_sum_of_something_else_is_no_gradient_of_a_bias():
    """Of the gradient before its mean is taken off."""

    def function(b, q, k, v, dout, bias):
        s = b.add(b.dot_general(q, k, ((3,), (3,)), ((0, 1), (0, 1))), b.broadcast_to(bias, (B, H, T, S)))
        _, _, p, along = softmax_of(b, Form(), s)
        batch = ((0, 1), (0, 1))
        g = b.dot_general(dout, v, ((3,), (3,)), batch)
        ds = b.multiply(p, b.subtract(g, along(b.reduce(b.multiply(g, p), [3]))))
        out, dq = b.dot_general(p, v, ((3,), (2,)), batch), b.dot_general(ds, k, ((3,), (2,)), batch)
        return out, dq, b.reduce(b.multiply(g, p), [0])

    inputs = numbers()
    graph = build(function, *inputs)
    simplify(graph)
    after = graph.copy()
    assert not recognize_attention(after)
    same(graph, after, inputs)


MISSES = [
    "softmax over queries",
    "largest of others",
    "one more in the sum",
    "dropout",
    "probabilities are returned",
    "gradient of other values",
    "gradient without its mean",
    "mean over queries",
    "mask on the other side",
    "gradient is returned",
    "gradient by other keys",
]


@pytest.mark.parametrize("miss", MISSES)
def test_what_is_nearly_attention_stays(miss):
    """One thing is different, and the S x S matrices are as they were."""
    inputs = numbers()
    for mask in ("causal", "data"):
        form = Form(mask=mask, hidden=LOWEST, miss=miss)
        graph, after, count = found_in(form, inputs)
        assert count == 0
        same(graph, after, inputs)
        assert found_in(replace(form, miss=""), inputs)[2] == 2


@pytest.mark.parametrize("miss", ["scale applied twice", "values of other keys"])
def test_what_is_attention_of_something_else_is_that(miss):
    """A factor at the wrong place is a factor of the gradients; values in another order are those values."""
    inputs = numbers()
    graph, after, count = found_in(Form(miss=miss), inputs)
    assert count == 2
    same(graph, after, inputs)


@pytest.mark.parametrize("seed", range(4))
def test_any_form_of_any_size_means_the_same(seed, monkeypatch):
    """Sizes of one among them, where dimensions have no axes; with or without something that is wrong."""
    rng, count = np.random.default_rng(seed), 0
    for _ in range(25):
        for name, sizes in (("B", (1, 2)), ("H", (1, 2, 3)), ("T", (1, 2, 5)), ("S", (1, 2, 5, 7)), ("D", (1, 2, 4))):
            monkeypatch.setitem(globals(), name, int(rng.choice(sizes)))
        form = Form(
            layout=str(rng.choice(["heads", "merged", "tokens", "keys first"])),
            scale=str(rng.choice(["after", "before", "divide", "none"])),
            mask=str(rng.choice(["causal", "added", "window", "data", "bias", "none"])),
            hidden=float(rng.choice([-math.inf, -1e9, LOWEST, -1e4])),
            guard=str(rng.choice(["plain", "finite", "lowest"])),
            quotient=str(rng.choice(["divide", "reciprocal"])),
            gradient="rows",
            miss=str(rng.choice(MISSES)) if rng.random() < 0.4 else "",
        )
        inputs = numbers(seed)
        graph, after, found = found_in(form, inputs)
        same(graph, after, inputs, atol=2e-7)
        count += found
    assert count


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("mask", ["causal", "window", "data"])
@pytest.mark.parametrize("place", range(4))
def test_numbers_that_are_none_stay_none(value, mask, place):
    """Wherever one infinity or NaN comes in, results are the same or not finite, and what was not finite is not
    now."""
    inputs = numbers()
    inputs[place][1, 2, 3, 1] = value
    graph, after, count = found_in(Form(mask=mask, hidden=LOWEST), inputs)
    assert count == 2
    for got, expected in zip(interpret(after, inputs), interpret(graph, inputs), strict=True):
        assert not np.isfinite(got[~np.isfinite(expected)]).any()
        there = np.isfinite(got)
        np.testing.assert_allclose(got[there], expected[there], rtol=1e-4, atol=1e-5)
        if value == 1e30:  # of the gradients nothing but rounding is left
            break


def test_an_inner_result_that_is_only_looked_at_hinders_nothing():
    """Outputs beyond those that count are for whoever inspects the program."""
    inputs = numbers()
    graph = build(lambda b, *values: attention(b, Form(miss="probabilities are returned"), *values), *inputs)
    simplify(graph)
    graph.num_probes = len(graph.outputs) - 4
    assert recognize_attention(graph)
    verify(graph)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "form", [Form(), Form("tokens", mask="data", hidden=LOWEST), Form("merged", mask="window")], ids=str
)
def test_the_chip_computes_it(form, precision):
    """The compiled program beside the graph as it was written; blind queries among them."""
    inputs = numbers(mask="blind queries")
    inputs[4] = np.nan_to_num(inputs[4], neginf=-1.0)
    graph = build(lambda b, *values: attention(b, form, *values), *inputs)
    for got, expected in zip(execute(graph, inputs, precision=precision), interpret(graph, inputs)):
        limit = (3e-2 if precision == "bf16" else 2e-5) * np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=limit)


def test_narrow_formats_keep_their_results():
    """Written in bfloat16, scores and probabilities are no longer rounded on the way; results are, as before."""
    inputs = numbers()
    graph, after, count = found_in(Form(narrow=True), inputs)
    assert count == 2
    for got, expected in zip(interpret(after, inputs), interpret(graph, inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-2 * np.abs(expected).max())


def grouped(b, q, k, v, repeat):
    """Key heads shared by 3 query heads, repeated or as an axis of its own."""
    if repeat:
        k, v = (b.reshape(b.broadcast_in_dim(x, (B, 2, 3, S, D), (0, 1, 3, 4)), (B, 6, S, D)) for x in (k, v))
        s = b.dot_general(q, k, ((3,), (3,)), ((0, 1), (0, 1)))
    else:
        q = b.reshape(q, (B, 2, 3, T, D))
        s = b.dot_general(q, k, ((4,), (3,)), ((0, 1), (0, 1)))
    visible = b.compare(b.iota((T, S), int32, 0), "GE", b.iota((T, S), int32, 1))
    s = b.select(b.broadcast_to(visible, s.shape), s, -math.inf)
    rank = len(s.shape) - 1
    e = b.exponential(b.subtract(s, b.reduce(s, [rank], "maximum", keepdims=True)))
    p = b.divide(e, b.reduce(e, [rank], "add", keepdims=True))
    return b.dot_general(p, v, ((rank,), (2,)), ((0, 1), (0, 1)))


@pytest.mark.parametrize("repeat", [True, False])
def test_key_heads_may_be_shared(repeat):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in ((B, 6, T, D), (B, 2, S, D), (B, 2, S, D))]
    graph = build(lambda b, *values: grouped(b, *values, repeat), *inputs)
    simplify(graph)
    after = graph.copy()
    assert recognize_attention(after)
    (op,) = [op for op in after.ops if op.name == "trn.attention"]
    assert op.attrs["causal"]
    if not repeat:
        assert op.operands[1].shape == (B, 2, S, D)
    same(graph, after, inputs)


def test_a_mask_of_truth_values_is_an_input():
    """Padding [B, S], known at run time only."""

    def function(b, q, k, v, mask):
        s = b.dot_general(q, k, ((3,), (3,)), ((0, 1), (0, 1)))
        s = b.select(b.broadcast_in_dim(mask, s.shape, (0, 3)), s, LOWEST)
        e = b.exponential(b.subtract(s, b.reduce(s, [3], "maximum", keepdims=True)))
        return b.dot_general(b.divide(e, b.reduce(e, [3], "add", keepdims=True)), v, ((3,), (2,)), ((0, 1), (0, 1)))

    inputs = [*numbers()[:3], np.array([[True] * 4 + [False] * 3, [False] * S])]
    graph = build(function, *inputs)
    assert graph.inputs[3].dtype is bool_
    after = graph.copy()
    assert recognize_attention(after)
    same(graph, after, inputs)
