# SPDX-License-Identifier: Apache-2.0
"""What the composite ops mean, in terms of the other ops.

`expand` is the definition: the interpreter runs it, and a compiler without a kernel for a composite may use it too.
Inside, everything is float32; results are converted to the format of the op's results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.formulas import normal_cdf
from trnlab.graph.ir import Op, Value
from trnlab.graph.ops import OPS
from trnlab.graph.windows.resizing import define_resize, define_resize_backward
from trnlab.numerics import philox, threefry
from trnlab.numerics.dtypes import bool_, dtype, float32, int32, uint32

Attrs = dict[str, Any]
_LOWEST = float(np.finfo(np.float32).min)
_TANH_SCALE, _TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


def expand(op: Op, b: GraphBuilder) -> tuple[Value, ...]:
    """Append the definition of a composite to `b`, reading op's operands; the values that stand for its results."""
    return define(op.name, op.operands, op.attrs, b)


def define(name: str, operands: Sequence[Value], attrs: Attrs, b: GraphBuilder) -> tuple[Value, ...]:
    """As `expand`, for an op that is not in a graph."""
    formats = [operand.dtype for operand in operands]
    wide = [b.convert(v, float32) if v.dtype.is_float else v for v in operands]
    results = _DEFINITIONS[name](b, wide, attrs)
    if name in ("trn.dot_sum", "trn.dot_and_sums", "trn.sum_along", "trn.grouped_dot", "trn.grouped_outer"):
        return b.convert(results[0], attrs["dtype"]), *results[1:]
    if name == "trn.sum_rows":
        return results
    if name == "trn.attention":
        return b.convert(results[0], formats[0]), results[1]
    if name == "trn.attention_backward":
        return (*(b.convert(v, formats[1]) for v in results[:3]), *results[3:])
    return tuple(b.convert(v, formats[0]) if formats[0].is_float else v for v in results)


def _dot_sum(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    contract = attrs["lhs_contracting_dimensions"], attrs["rhs_contracting_dimensions"]
    operands = [_cast(b, v, attrs[("lhs_cast", "rhs_cast")[i % 2]]) for i, v in enumerate(operands)]
    products = [b.dot_general(operands[i], operands[i + 1], contract, ((), ())) for i in range(0, len(operands), 2)]
    total = products[0]
    for product in products[1:]:
        total = b.add(total, product)
    return (total,)


def _dot_and_sums(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    lhs, rhs = operands
    summed = lhs if attrs["summed"] == "lhs" else rhs
    return b.dot_general(lhs, rhs, ((0,), (0,)), ((), ())), b.reduce(summed, (0,))


def _cast(b: GraphBuilder, x: Value, to: str) -> Value:
    return b.convert(b.convert(x, dtype(to)), x.dtype) if to else x


# -- activations --------------------------------------------------------------------------------------------------


def _gelu(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = operands
    return (b.multiply(x, normal_cdf(b, x) if attrs["approximate"] == "none" else _tanh_gate(b, x)),)


def _gelu_dx(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    """Product rule: Phi(x) + x phi(x); with the approximation, g + x g (1 - g) (2 u)' for the gate g.

    Where g (1 - g) is zero, so is the second term, though (2 u)' may be infinite.
    """
    (x,) = operands
    squared = b.multiply(x, x)
    if attrs["approximate"] == "none":
        density = b.multiply(b.exponential(b.multiply(squared, -0.5)), 1 / math.sqrt(2 * math.pi))
        return (b.add(normal_cdf(b, x), b.multiply(x, density)),)
    gate = _tanh_gate(b, x)
    flat = b.multiply(gate, b.subtract(1.0, gate))
    inner = b.multiply(b.add(b.multiply(squared, 3 * _TANH_CUBE), 1.0), 2 * _TANH_SCALE)
    inner = b.select(b.compare(flat, "EQ", 0.0), 1.0, inner)
    return (b.add(gate, b.multiply(b.multiply(x, flat), inner)),)


def _tanh_gate(b: GraphBuilder, x: Value) -> Value:
    """(1 + tanh(u)) / 2 for u = sqrt(2 / pi) (x + 0.044715 x^3): logistic(2 u), in which nothing cancels."""
    cube = b.multiply(b.multiply(b.multiply(x, x), x), _TANH_CUBE)
    return b.logistic(b.multiply(b.add(x, cube), 2 * _TANH_SCALE))


def _silu(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = operands
    return (b.multiply(x, b.logistic(x)),)


def _silu_dx(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    """s (1 + x (1 - s)) for s = logistic(x); 1 - s is logistic(-x), in which nothing cancels."""
    (x,) = operands
    rest = b.logistic(b.negate(x))
    return (b.multiply(b.logistic(x), b.add(b.multiply(x, rest), 1.0)),)


# -- signs --------------------------------------------------------------------------------------------------------


def _copysign(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    """The sign of zero is that of one over it."""
    size, sign = b.abs(operands[0]), operands[1]
    negative = b.or_(b.compare(sign, "LT", 0.0), b.compare(b.divide(1.0, sign), "LT", 0.0))
    return (b.select(negative, b.negate(size), size),)


def _rotate_half(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = operands
    last, width = len(x.shape) - 1, attrs["width"] or x.shape[-1]
    zeros = [b.constant(0.0, x.dtype, (*x.shape[:-1], x.shape[-1] - width))] if width < x.shape[-1] else []
    if attrs["pairs"]:
        even, odd = (b.slice_dim(x, last, place, width, 2) for place in (0, 1))
        columns = [b.reshape(v, (*v.shape, 1)) for v in (b.negate(odd), even)]
        turned = [b.reshape(b.concatenate(columns, last + 1), (*x.shape[:-1], width))]
    else:
        turned = [b.negate(b.slice_dim(x, last, width // 2, width)), b.slice_dim(x, last, 0, width // 2)]
    return (b.concatenate([*turned, *zeros], last),)


# -- windows -------------------------------------------------------------------------------------------------------


def _windows(
    b: GraphBuilder, x: Value, attrs: Attrs, outside: float = -math.inf
) -> list[tuple[tuple[int, int], Value]]:
    """Each element of the window, where it lies in place 0, and x there in all places."""
    lead, lows, steps = len(x.shape) - 2, attrs["padding_low"], attrs["window_strides"]
    reach = [(n - 1) * s + k for n, s, k in zip(attrs["places"], steps, attrs["window"])]
    highs = [r - low - n for r, low, n in zip(reach, lows, x.shape[-2:])]
    none = [0] * lead
    padded = b.pad(x, [*none, *lows], [*none, *highs], value=outside)
    found = []
    for element in np.ndindex(*attrs["window"]):
        limits = [e + (n - 1) * s + 1 for e, n, s in zip(element, attrs["places"], steps)]
        seen = b.slice(padded, [*none, *element], [*x.shape[:-2], *limits], [1] * lead + list(steps))
        found.append(((element[0] - lows[0], element[1] - lows[1]), seen))
    return found


def _moments(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    x, dims = b.convert(operands[0], float32), attrs["dimensions"]
    count = float(math.prod(x.shape[d] for d in dims))
    mean = b.divide(b.reduce(x, dims), count)
    kept = [d for d in range(len(x.shape)) if d not in dims]
    apart = b.subtract(x, b.broadcast_in_dim(mean, x.shape, kept))
    variance = b.divide(b.reduce(b.multiply(apart, apart), dims), count)
    return (b.concatenate([b.reshape(v, (1, *mean.shape)) for v in (mean, variance)], 0),)


def _softmax_statistics(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    x, dims = b.convert(operands[0], float32), attrs["dimensions"]
    top = b.reduce(x, dims, "maximum")
    kept = [d for d in range(len(x.shape)) if d not in dims]
    total = b.reduce(b.exponential(b.subtract(x, b.broadcast_in_dim(top, x.shape, kept))), dims)
    return (b.concatenate([b.reshape(v, (1, *top.shape)) for v in (top, total)], 0),)


def _sum_of_squares(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    x = b.convert(operands[0], float32)
    return (b.reduce(b.multiply(x, x), attrs["dimensions"]),)


def _max_pool(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    best, *others = (seen for _, seen in _windows(b, operands[0], attrs))
    for seen in others:
        best = b.maximum(best, seen)
    return (best,)


def _max_pool_backward(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    """Elements in turn: of windows that have not met their largest yet, those that are it."""
    if attrs["ordered"]:
        return _ordered_pool_backward(b, operands, attrs)
    dout, x = operands
    (best,) = _max_pool(b, (x,), attrs)
    free, total = b.compare(dout, "EQ", dout), b.constant(0.0, float32, x.shape)
    free = b.or_(free, b.not_(free))
    steps, sizes = attrs["window_strides"], x.shape[-2:]
    for first, seen in _windows(b, x, attrs):
        inside = [
            (f + np.arange(n) * s >= 0) & (f + np.arange(n) * s < size)
            for f, n, s, size in zip(first, attrs["places"], steps, sizes)
        ]
        there = b.broadcast_to(b.constant(np.logical_and.outer(*inside), bool_), seen.shape)
        mine = b.and_(b.and_(b.or_(b.compare(seen, "EQ", best), b.compare(seen, "NE", seen)), free), there)
        free = b.and_(free, b.not_(mine))
        total = b.add(total, _given_back(b, b.select(mine, dout, 0.0), first, sizes, attrs))
    return (total,)


def _ordered_pool_backward(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    """Elements in turn: one stays as long as it is at least the next. Windows before come first in the sums."""
    dout, x = operands
    elements = _windows(b, x, attrs)
    (_, best), *others = elements
    chosen, total = b.constant(0, int32, dout.shape), b.constant(0.0, float32, x.shape)
    for number, (_, seen) in enumerate(others, 1):
        stays = b.compare(best, "GE", seen)
        best, chosen = b.select(stays, best, seen), b.select(stays, chosen, number)
    for number, (first, _) in reversed(list(enumerate(elements))):
        share = b.select(b.compare(chosen, "EQ", number), dout, 0.0)
        total = b.add(total, _given_back(b, share, first, x.shape[-2:], attrs))
    return (total,)


def _given_back(b: GraphBuilder, share: Value, first: Sequence[int], sizes: Sequence[int], attrs: Attrs) -> Value:
    """What places give to one element of the window, where it lies in an operand of these last dimensions."""
    lead, steps = len(share.shape) - 2, attrs["window_strides"]
    highs = [n - f - (m - 1) * s - 1 for n, f, m, s in zip(sizes, first, attrs["places"], steps)]
    inner = [0] * lead + [s - 1 for s in steps]
    return b.pad(share, [0] * lead + list(first), [0] * lead + highs, inner)


def window_divisors(attrs: Attrs, size: Sequence[int]) -> list[list[float]]:
    """What `trn.avg_pool` divides by over an operand whose last two dimensions are `size`: products of a number for
    each place along one, and one for each along the other."""
    if attrs["divisor"]:
        return [[attrs["divisor"] if d == 0 else 1.0] * attrs["places"][d] for d in (0, 1)]
    names = "places", "window_strides", "padding_low", "window", "counted"
    found = []
    for n, *each in zip(size, *(attrs[name] for name in names)):
        places, step, low, window, counted = each
        starts = [i * step - low for i in range(places)]
        found.append([float(min(a + window, n + counted) - max(a, -counted)) for a in starts])
    return found


def _averaged(b: GraphBuilder, x: Value, attrs: Attrs, size: Sequence[int]) -> Value:
    """x [..., places] divided; zero is added, which makes zero of minus zero."""
    down, along = window_divisors(attrs, size)
    divisors = b.constant(np.multiply.outer(down, along).astype(np.float32), float32)
    return b.add(b.divide(x, b.broadcast_to(divisors, x.shape)), 0.0)


def _avg_pool(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    (x,) = operands
    total = b.constant(0.0, float32, (*x.shape[:-2], *attrs["places"]))
    for _, seen in _windows(b, x, attrs, outside=0.0):
        total = b.add(total, seen)
    return (_averaged(b, total, attrs, x.shape[-2:]),)


def _avg_pool_backward(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    (dout,), size = operands, attrs["size"]
    share, total = _averaged(b, dout, attrs, size), b.constant(0.0, float32, (*dout.shape[:-2], *size))
    for element in np.ndindex(*attrs["window"]):
        first = [e - low for e, low in zip(element, attrs["padding_low"])]
        total = b.add(total, _given_back(b, share, first, size, attrs))
    return (total,)


# -- attention ----------------------------------------------------------------------------------------------------
# Heads are grouped by the key head they share: q is seen as [B, Hkv, G, T, D] with H = Hkv * G.


def _attention(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    q, k, v = operands[:3]
    bias = [b.transpose(x, (0, 1, 3, 2)) if attrs["shifted"] else x for x in operands[3:]]
    scores = _scores(b, _grouped(b, q, k), k, bias, attrs)
    highest = b.maximum(b.reduce(scores, [-1], "maximum", keepdims=True), _LOWEST)
    weights = b.exponential(b.subtract(scores, highest))
    total = b.reduce(weights, [-1], "add", keepdims=True)
    hidden = b.compare(total, "EQ", 0.0)  # a query that sees no key
    total = b.select(hidden, 1.0, total)
    out = b.dot_general(b.divide(weights, total), v, ((4,), (2,)), ((0, 1), (0, 1)))
    lse = b.add(b.log(total), b.select(hidden, 0.0, highest))
    return b.reshape(out, (*q.shape[:3], v.shape[3])), b.reshape(lse, q.shape[:3])


def _attention_backward(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    """The weights again from lse; then the softmax's gradient ds = p (dp - sum(dout * out))."""
    dout, q, k, v, out, lse = operands[:6]
    batch = ((0, 1), (0, 1))
    grouped, dgrouped = _grouped(b, q, k), _grouped(b, dout, k)
    told = grouped
    for heard in operands[7:]:
        told = _grouped(b, b.multiply(q, b.broadcast_to(_repeated(b, heard, q.shape[0]), q.shape)), k)
    scores = _scores(b, told, k, operands[6:7], attrs)
    weights = b.exponential(b.subtract(scores, b.reshape(lse, (*scores.shape[:4], 1))))
    if operands[6:]:  # beside a large bias, the log of the sum is lost in lse
        total = b.reduce(weights, [-1], "add", keepdims=True)
        weights = b.divide(weights, b.select(b.compare(total, "EQ", 0.0), 1.0, total))
    delta = b.reshape(b.reduce(b.multiply(dout, out), [-1]), (*scores.shape[:4], 1))
    dweights = b.dot_general(dgrouped, v, ((4,), (3,)), batch)
    unscaled = b.multiply(weights, b.subtract(dweights, delta))
    dscores = b.multiply(unscaled, attrs["scale"])
    dq = b.reshape(b.dot_general(dscores, k, ((4,), (2,)), batch), q.shape)
    dk = b.dot_general(dscores, grouped, ((2, 3), (2, 3)), batch)
    dv = b.dot_general(weights, dgrouped, ((2, 3), (2, 3)), batch)
    if not attrs["dbias"]:
        return dq, dk, dv
    dbias = b.reshape(unscaled, (*q.shape[:3], k.shape[2]))
    return dq, dk, dv, b.reduce(dbias, [0], keepdims=True) if attrs["dbias"] == "sum" else dbias


def _repeated(b: GraphBuilder, x: Value, batch: int) -> Value:
    """[N, ...] as [B, ...] where N is a divisor of B other than 1."""
    period, *rest = x.shape
    if period in (1, batch):
        return x
    whole = b.broadcast_in_dim(x, (batch // period, period, *rest), range(1, len(rest) + 2))
    return b.reshape(whole, (batch, *rest))


def _grouped(b: GraphBuilder, x: Value, k: Value) -> Value:
    batch, heads, length, size = x.shape
    return b.reshape(x, (batch, k.shape[1], heads // k.shape[1], length, size))


def _scores(b: GraphBuilder, q: Value, k: Value, bias: Sequence[Value], attrs: Attrs) -> Value:
    """scale * q k^T + bias, [B, Hkv, G, T, S]; -inf where a causal mask hides a key later than the query."""
    scores = b.multiply(b.dot_general(q, k, ((4,), (3,)), ((0, 1), (0, 1))), attrs["scale"])
    batch, key_heads, group, t, s = scores.shape
    for extra in bias:
        whole = b.broadcast_to(_repeated(b, extra, batch), (batch, key_heads * group, t, s))
        scores = b.add(scores, b.reshape(whole, scores.shape))
    if attrs["causal"]:
        visible = b.compare(b.iota((t, s), int32, 0), "GE", b.iota((t, s), int32, 1))
        scores = b.select(b.broadcast_to(visible, scores.shape), scores, -math.inf)
    return scores


# -- random numbers -----------------------------------------------------------------------------------------------


def _rng_uniform(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    """The top 24 of 32 random bits as a fraction, exact in float32: element i, in row-major order, has those of block
    number first + i of Threefry, whose key is the seed (`numerics.threefry`)."""
    (seed,) = operands
    shape, first = attrs["shape"], attrs["first"]
    words = [b.reshape(b.slice_dim(b.convert(seed, uint32), 0, i, i + 1), ()) for i in (0, 1)]
    words.append(b.xor(b.xor(words[0], words[1]), threefry.PARITY))
    low = b.add(b.reshape(b.iota((math.prod(shape),), uint32), shape), first & threefry.WORD)
    high = b.constant(first >> 32, uint32, shape)
    if (first & threefry.WORD) + math.prod(shape) > threefry.WORD:
        carried = b.compare(low, "LT", first & threefry.WORD)
        high = b.add(high, b.convert(carried, uint32))
    low, high = b.add(low, words[0]), b.add(high, words[1])
    for turn in range(threefry.INJECTIONS):
        for distance in threefry.ROTATIONS[turn % 2]:
            low = b.add(low, high)
            high = b.xor(_rotated(b, high, distance), low)
        low = b.add(low, words[(turn + 1) % 3])
        high = b.add(b.add(high, words[(turn + 2) % 3]), turn + 1)
    return (b.multiply(b.convert(b.shift_right_logical(low, 8), float32), 2.0**-24),)


def _rng_philox(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    """Word i, in row-major order, is word i % 4 of the block at counter + i // 4 (`numerics.philox`)."""
    (state,) = operands
    blocks = -(-math.prod(attrs["shape"]) // philox.LANES)
    words = [b.broadcast_to(b.slice_dim(state, 0, i, i + 1), (blocks,)) for i in range(philox.STATE_WORDS)]
    key, counter = words[:2], words[2:]
    added = b.iota((blocks,), uint32)
    for i in range(philox.LANES):
        total = b.add(counter[i], added)
        added = b.convert(b.compare(total, "LT", added), uint32)
        counter[i] = total
    for _ in range(philox.ROUNDS):
        (low0, high0), (low1, high1) = (_wide_product(b, counter[2 * i], philox.MULTIPLIERS[i]) for i in (0, 1))
        first, third = (b.xor(b.xor(high, x), k) for high, x, k in zip((high1, high0), counter[1::2], key))
        counter = [first, low1, third, low0]
        key = [b.add(k, step) for k, step in zip(key, philox.KEY_STEPS)]
    flat = b.reshape(b.concatenate([b.reshape(c, (blocks, 1)) for c in counter], 1), (blocks * philox.LANES,))
    return (b.reshape(b.slice_dim(flat, 0, 0, math.prod(attrs["shape"])), attrs["shape"]),)


def _wide_product(b: GraphBuilder, x: Value, factor: int) -> tuple[Value, Value]:
    """The low and the high word of x * factor, from products of halves."""
    halves = b.and_(x, 0xFFFF), b.shift_right_logical(x, 16)
    (ll, hl), (lh, hh) = ([b.multiply(half, f) for half in halves] for f in (factor & 0xFFFF, factor >> 16))
    middle = b.add(b.add(b.and_(lh, 0xFFFF), b.and_(hl, 0xFFFF)), b.shift_right_logical(ll, 16))
    high = b.add(
        b.add(hh, b.shift_right_logical(middle, 16)), b.add(*(b.shift_right_logical(m, 16) for m in (lh, hl)))
    )
    return b.multiply(x, factor), high


def _rotated(b: GraphBuilder, x: Value, distance: int) -> Value:
    return b.or_(b.shift_left(x, distance), b.shift_right_logical(x, 32 - distance))


# -- rows by index ------------------------------------------------------------------------------------------------


def _take_along(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    return (b.take_along(*operands),)


def _sum_along(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    x, ids = operands
    lead = tuple(range(len(x.shape) - 1))
    zeros = b.constant(0, x.dtype, (*x.shape[:-1], attrs["places"]))
    dims = {"input_batching_dims": lead, "scatter_indices_batching_dims": lead, "inserted_window_dims": (len(lead),)}
    places = {"scatter_dims_to_operand_dims": (len(lead),), "index_vector_dim": len(ids.shape)}
    return (b.op("scatter", zeros, ids, x, **dims, **places, update_window_dims=(), kind="add"),)


def _sum_rows(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    update, ids = operands
    found = b.take_rows(b.scatter_add_rows(ids, update, attrs["rows"]), ids)
    inside = b.and_(b.compare(ids, "GE", 0), b.compare(ids, "LT", attrs["rows"]))
    return (b.select(b.broadcast_in_dim(inside, update.shape, (0,)), found, 0.0),)


def _put_rows(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    table, ids, update = operands
    places = {"update_window_dims": (1,), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,)}
    return (b.op("scatter", table, ids, update, **places, index_vector_dim=1, kind="assign"),)


# -- groups of rows -----------------------------------------------------------------------------------------------


def _grouped_dot(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    """All rows with each group's matrix, those of others hidden before, for none of their products may be NaN, and
    after."""
    x, w, ends = operands[:3]
    (rows, size), (groups, _, cols) = x.shape, w.shape
    inside = _members(b, ends, rows)
    own = b.select(
        b.broadcast_in_dim(inside, (groups, rows, size), (0, 1)), b.broadcast_to(x, (groups, rows, size)), 0
    )
    found = b.matmul(own, w)
    return (b.reduce(b.select(b.broadcast_in_dim(inside, (groups, rows, cols), (0, 1)), found, 0), (0,)),)


def _grouped_outer(b: GraphBuilder, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, ...]:
    inside = _members(b, operands[2], operands[0].shape[0])
    shapes = [(*inside.shape, v.shape[1]) for v in operands[:2]]
    x, y = (
        b.select(b.broadcast_in_dim(inside, shape, (0, 1)), b.broadcast_to(v, shape), 0)
        for v, shape in zip(operands, shapes)
    )
    return (b.dot_general(x, y, ((1,), (1,)), ((0,), (0,))),)


def _members(b: GraphBuilder, ends: Value, rows: int) -> Value:
    """bool [G, rows]: which rows lie in each group."""
    ends = b.convert(ends, int32)
    starts = b.concatenate([b.constant(0, int32, (1,)), b.slice_dim(ends, 0, 0, ends.shape[0] - 1)], 0)
    shape = (ends.shape[0], rows)
    place = b.iota(shape, int32, 1)
    first, last = (b.broadcast_in_dim(v, shape, (0,)) for v in (starts, ends))
    return b.and_(b.compare(place, "GE", first), b.compare(place, "LT", last))


_DEFINITIONS: dict[str, Callable[[GraphBuilder, Sequence[Value], Attrs], tuple[Value, ...]]] = {
    "trn.gelu": _gelu,
    "trn.gelu_dx": _gelu_dx,
    "trn.copysign": _copysign,
    "trn.silu": _silu,
    "trn.silu_dx": _silu_dx,
    "trn.rotate_half": _rotate_half,
    "trn.moments": _moments,
    "trn.softmax_statistics": _softmax_statistics,
    "trn.sum_of_squares": _sum_of_squares,
    "trn.dot_sum": _dot_sum,
    "trn.dot_and_sums": _dot_and_sums,
    "trn.max_pool": _max_pool,
    "trn.max_pool_backward": _max_pool_backward,
    "trn.take_along": _take_along,
    "trn.sum_along": _sum_along,
    "trn.avg_pool": _avg_pool,
    "trn.avg_pool_backward": _avg_pool_backward,
    "trn.resize": define_resize,
    "trn.resize_backward": define_resize_backward,
    "trn.sum_rows": _sum_rows,
    "trn.put_rows": _put_rows,
    "trn.grouped_dot": _grouped_dot,
    "trn.grouped_outer": _grouped_outer,
    "trn.attention": _attention,
    "trn.attention_backward": _attention_backward,
    "trn.rng_uniform": _rng_uniform,
    "trn.rng_philox": _rng_philox,
}
assert set(_DEFINITIONS) == {name for name, d in OPS.items() if d.composite}
