# SPDX-License-Identifier: Apache-2.0
"""A training step written down layer by layer: forward now, and how to go back, as a graph without any framework.

Every method appends the forward ops of a layer and remembers a function that, given the gradient of what came out,
adds to the gradients of what went in. What the ranks of a tensor group exchange are collectives of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Value
from trnlab.numerics.dtypes import DType, dtype, float32, int32

HIDDEN = -10000.0  # a score that causality hides, as Megatron-LM has it


@dataclass
class Tape:
    """A step under construction. `form`: the format that activations and weights are kept in."""

    name: str
    form: DType = field(default_factory=lambda: dtype("bfloat16"))
    groups: tuple[tuple[int, ...], ...] = ()  # the tensor groups of all ranks
    sums: bool = True  # whether gradients of weights are added to sums over the microbatches of a step

    def __post_init__(self) -> None:
        self.b = GraphBuilder(self.name)
        self._back: list[Callable[[], None]] = []
        self._gradients: dict[Value, Value] = {}
        self._weights: list[Value] = []
        self.given_back: list[int] = []  # outputs that are gradients of weights
        self._named: dict[str, Value] = {}
        self._sources: dict[Value, Value] = {}  # what was gathered, by what came of it
        self._regathered: dict[Value, Value] = {}
        self._asked: list[Value] = []  # of what comes from outside, whose gradients go back there
        self._inputs = self.left = 0

    # -- what goes in and out -----------------------------------------------------------------------------------
    def weight(self, name: str, *shape: int) -> Value:
        """A parameter, whose gradient will be an output; the same one when its name comes again."""
        if name not in self._named:
            self._named[name] = self.b.input(name, shape, self.form)
            self._weights.append(self._named[name])
        return self._named[name]

    @property
    def weights(self) -> tuple[int, ...]:
        """Numbers of the inputs that are parameters."""
        return tuple(self.b.graph.inputs.index(weight) for weight in self._weights)

    def given(self, shape: Sequence[int], form: DType | None = None) -> Value:
        """Something from outside: a batch, or what a neighbour sends."""
        self._inputs += 1
        return self.b.input(f"given_{self._inputs}", tuple(shape), form or self.form)

    def lent(self, shape: Sequence[int]) -> Value:
        """Something from other ranks, whose gradient is an output that goes back to them."""
        self._asked.append(self.given(shape))
        return self._asked[-1]

    def leave(self, value: Value) -> None:
        """An output of the graph; `left` counts them."""
        self.b.output(value)
        self.left += 1

    def gathered(self, x: Value) -> Value:
        """The parts of all ranks of the tensor group, along the sequence; x [B, S / t, H] -> [B, S, H]."""
        (y,) = self.b.all_gather([x], self.groups, 1)
        self._sources[y] = x
        return self.then(y, lambda dy: self.send_back(x, self.b.reduce_scatter([dy], self.groups, 1)[0]))

    def _again(self, y: Value) -> Value:
        """y in the backward pass: what was gathered is gathered once more, and not kept (Korthikanti et al. 2022)."""
        if y in self._sources and y not in self._regathered:
            parts = self.b.optimization_barrier(self._sources[y])
            self._regathered[y] = self.b.all_gather([parts], self.groups, 1)[0]
        return self._regathered.get(y, y)

    def remade(self, make: Callable[[Value], Value], x: Value) -> Value:
        """make(x), of which nothing is kept: the backward pass makes it once more (activation checkpointing)."""
        first = len(self._back)
        y = make(x)
        del self._back[first:]

        def back(dy: Value) -> None:
            mark = len(self._back)
            entered = self._again(x) if x in self._sources else self.b.optimization_barrier(x)
            self._gradients[make(entered)] = dy
            for step in reversed(self._back[mark:]):
                step()
            del self._back[mark:]
            self.send_back(x, self._gradients[entered])

        return self.then(y, back)

    def scattered(self, x: Value) -> Value:
        """This rank's part, along the sequence, of what x adds up to: [B, S, H] -> [B, S / t, H]."""
        (y,) = self.b.reduce_scatter([x], self.groups, 1)
        return self.then(y, lambda dy: self.send_back(x, self.b.all_gather([dy], self.groups, 1)[0]))

    def finish(self, y: Value, gradient: Value | None = None, entered: Value | None = None) -> Graph:
        """Go back from y, whose gradient is given or comes from outside. Gradients of weights leave in float32, added
        to sums as over the microbatches of a step where `sums` says so; that of what entered is an output."""
        self._gradients[y] = self.given(y.shape) if gradient is None else gradient
        for back in reversed(self._back):
            back()
        if entered is not None:
            self.leave(self._gradients[entered])
        for value in self._asked:
            if value in self._gradients:  # not of what is made again, whose copy has the gradient
                self.leave(self._gradients[value])
        for weight in self._weights:
            if weight in self._gradients:
                self._give(weight, self._gradients[weight])
        return self.b.build()

    def _give(self, weight: Value, gradient: Value) -> None:
        self.given_back.append(len(self.b.graph.outputs))
        if not self.sums:
            self.b.output(self.b.convert(gradient, float32))
            return
        total = self.b.input(f"sum_{weight.name}", weight.shape, float32)
        self.b.output(self.b.add(total, gradient), alias_of=total)

    def _take(self, y: Value) -> Value | None:
        return self._gradients.get(y)

    def send_back(self, x: Value, gradient: Value) -> None:
        """One more part of the gradient of x."""
        old = self._gradients.get(x)
        self._gradients[x] = gradient if old is None else self.b.add(old, gradient)

    def then(self, y: Value, back: Callable[[Value], None]) -> Value:
        """y, from whose gradient `back` adds to those of what it was made of."""

        def run() -> None:
            gradient = self._take(y)
            if gradient is not None:
                back(gradient)

        self._back.append(run)
        return y

    # -- layers ----------------------------------------------------------------------------------------------------
    def linear(self, x: Value, weight: Value, bias: Value | None = None) -> Value:
        """x [..., K] times weight [N, K] -> [..., N]."""
        b, last = self.b, len(x.shape) - 1
        rows = tuple(range(last))
        y = b.dot_general(x, weight, ((last,), (1,)), dt=self.form)
        if bias is not None:
            y = b.add(y, bias)

        def back(dy: Value) -> None:
            self.send_back(weight, b.dot_general(dy, self._again(x), (rows, rows)))
            if bias is not None:
                self.send_back(bias, b.reduce(b.convert(dy, float32), rows))
            self.send_back(x, b.dot_general(dy, weight, ((last,), (0,)), dt=self.form))

        return self.then(y, back)

    def first(self, x: Value) -> Value:
        """The first of each sequence: [B, S, H] -> [B, 1, H]."""
        b, length = self.b, x.shape[1]
        y = b.slice_dim(x, 1, 0, 1)
        return self.then(y, lambda dy: self.send_back(x, b.pad(dy, (0, 0, 0), (0, length - 1, 0))))

    def add(self, x: Value, y: Value) -> Value:
        """x + y of one shape."""

        def back(d: Value) -> None:
            self.send_back(x, d)
            self.send_back(y, d)

        return self.then(self.b.add(x, y), back)

    def norm(self, x: Value, scale: Value, shift: Value | None = None, epsilon: float = 1e-5) -> Value:
        """Norm of the last dimension: by the root of its mean square, or, with a shift, about its mean."""
        b, n, rows = self.b, x.shape[-1], tuple(range(len(x.shape) - 1))
        wide = b.convert(x, float32)
        if shift is not None:
            wide = b.subtract(wide, self._mean(wide))
        inverse = b.rsqrt(b.add(self._mean(b.multiply(wide, wide)), epsilon))
        unit = b.multiply(wide, inverse)
        y = b.multiply(unit, b.convert(scale, float32))
        if shift is not None:
            y = b.add(y, b.convert(shift, float32))

        def back(dy: Value) -> None:
            d = b.convert(dy, float32)
            self.send_back(scale, b.reduce(b.multiply(d, unit), rows))
            if shift is not None:
                self.send_back(shift, b.reduce(d, rows))
            again = b.convert(b.optimization_barrier(scale), float32)  # or all rows of it would be kept from forward
            d = b.multiply(d, again)
            along = b.multiply(b.reduce(b.multiply(d, unit), (-1,), keepdims=True), 1 / n)
            inner = b.subtract(d, b.multiply(unit, along))
            if shift is not None:
                inner = b.subtract(inner, self._mean(d))
            self.send_back(x, b.convert(b.multiply(inverse, inner), self.form))

        return self.then(b.convert(y, self.form), back)

    def _mean(self, x: Value) -> Value:
        return self.b.multiply(self.b.reduce(x, (-1,), keepdims=True), 1 / x.shape[-1])

    def activation(self, x: Value, name: str) -> Value:
        """ "gelu", "silu" or "relu"."""
        b = self.b
        if name == "relu":
            return self.then(
                b.maximum(x, 0.0), lambda dy: self.send_back(x, b.select(b.compare(x, "GT", 0.0), dy, 0.0))
            )
        if name == "silu":
            return self.then(b.silu(x), lambda dy: self.send_back(x, b.multiply(dy, self._silu_slope(x))))
        return self.then(b.gelu(x), lambda dy: self.send_back(x, b.multiply(dy, b.gelu_dx(x))))

    def _silu_slope(self, x: Value) -> Value:
        """Written out as PyTorch has it for devices without a kernel of their own (`math_silu_backward`)."""
        b = self.b
        part = b.logistic(x)
        return b.multiply(part, b.add(b.multiply(x, b.subtract(1.0, part)), 1.0))

    def multiply(self, x: Value, y: Value) -> Value:
        """x * y of one shape."""
        b = self.b

        def back(d: Value) -> None:
            self.send_back(x, b.multiply(d, y))
            self.send_back(y, b.multiply(d, x))

        return self.then(b.multiply(x, y), back)

    def heads(self, x: Value, size: int) -> Value:
        """[B, S, N * size] -> [B, N, S, size]."""
        b, (batch, length, width) = self.b, x.shape
        y = b.transpose(b.reshape(x, (batch, length, width // size, size)), (0, 2, 1, 3))
        return self.then(y, lambda dy: self.send_back(x, b.reshape(b.transpose(dy, (0, 2, 1, 3)), x.shape)))

    def joined(self, x: Value) -> Value:
        """[B, N, S, size] -> [B, S, N * size]."""
        b, (batch, count, length, size) = self.b, x.shape
        y = b.reshape(b.transpose(x, (0, 2, 1, 3)), (batch, length, count * size))
        parts = (batch, length, count, size)
        return self.then(y, lambda dy: self.send_back(x, b.transpose(b.reshape(dy, parts), (0, 2, 1, 3))))

    def rotated(self, x: Value, cosine: Value, sine: Value) -> Value:
        """x [B, N, S, D] turned by the angles of its places; cosines and sines [S, D] are equal in both halves."""
        b = self.b

        def back(d: Value) -> None:
            self.send_back(x, b.add(b.multiply(d, cosine), self._quarter(b.multiply(d, sine), -1.0)))

        return self.then(b.add(b.multiply(x, cosine), b.multiply(self._quarter(x, 1.0), sine)), back)

    def _quarter(self, x: Value, sign: float) -> Value:
        """Halves of the last dimension as real and imaginary parts, a quarter of a turn further or back."""
        b, half = self.b, x.shape[-1] // 2
        low, high = b.slice_dim(x, 3, 0, half), b.slice_dim(x, 3, half, 2 * half)
        return b.concatenate((b.negate(high), low) if sign > 0 else (high, b.negate(low)), 3)

    def attention(self, q: Value, k: Value, v: Value, causal: bool, again: bool = False) -> Value:
        """[B, H, T, D] over [B, G, S, D]. again: the backward pass makes it once more (selective recomputation)."""
        b = self.b
        out, sums = b.attention(q, k, v, causal=causal)

        def back(d: Value) -> None:
            made = b.attention(b.optimization_barrier(q), k, v, causal=causal) if again else (out, sums)
            for x, gradient in zip((q, k, v), b.attention_backward(d, q, k, v, *made, causal=causal)):
                self.send_back(x, gradient)

        return self.then(out, back)

    def written_attention(self, q: Value, k: Value, v: Value, causal: bool, again: bool) -> Value:
        """[B, H, T, D] over [B, G, S, D] as it is without a kernel for attention: scores of all pairs in memory,
        hidden ones included. again: they are not kept, but made once more for the backward pass (selective
        recomputation, Korthikanti et al. 2022)."""
        b = self.b
        shape = (*k.shape[:2], q.shape[1] // k.shape[1], *q.shape[2:])  # [B, G, H / G, T, D]
        grouped = b.reshape(q, shape)
        kept = self._probabilities(grouped, k, causal)
        out = b.dot_general(kept, v, ((4,), (2,)), ((0, 1), (0, 1)), dt=self.form)

        def back(dout: Value) -> None:
            p = self._probabilities(b.optimization_barrier(grouped), k, causal) if again else kept
            d = b.reshape(dout, shape)
            grown = b.optimization_barrier(b.dot_general(d, v, ((4,), (3,)), ((0, 1), (0, 1)), dt=self.form))
            wide, weight = b.convert(grown, float32), b.convert(p, float32)
            mean = b.reduce(b.multiply(wide, weight), (-1,), keepdims=True)
            ds = b.multiply(b.multiply(weight, b.subtract(wide, mean)), q.shape[-1] ** -0.5)
            ds = b.optimization_barrier(b.convert(ds, self.form))
            heads = ((0, 1), (0, 1))
            self.send_back(v, b.dot_general(p, d, ((2, 3), (2, 3)), heads, dt=self.form))
            self.send_back(q, b.reshape(b.dot_general(ds, k, ((4,), (2,)), heads, dt=self.form), q.shape))
            self.send_back(k, b.dot_general(ds, grouped, ((2, 3), (2, 3)), heads, dt=self.form))

        return self.then(b.reshape(out, (*q.shape[:3], v.shape[3])), back)

    def _probabilities(self, q: Value, k: Value, causal: bool) -> Value:
        """softmax(q k^T / sqrt(D)) of q [B, G, R, T, D] and k [B, G, S, D], in memory."""
        b = self.b
        scores = b.optimization_barrier(b.dot_general(q, k, ((4,), (3,)), ((0, 1), (0, 1)), dt=self.form))
        found = self.softmax(b.multiply(b.convert(scores, float32), q.shape[-1] ** -0.5), causal)
        return b.optimization_barrier(b.convert(found, self.form))

    def softmax(self, wide: Value, causal: bool) -> Value:
        """Softmax of scores [..., T, S] in float32; nothing of how to go back."""
        b, n = self.b, len(wide.shape)
        if causal:
            pairs = wide.shape[-2:]
            sees = b.compare(b.iota(pairs, int32, 0), "GE", b.iota(pairs, int32, 1))
            wide = b.select(b.broadcast_in_dim(sees, wide.shape, (n - 2, n - 1)), wide, HIDDEN)
        grown = b.exponential(b.subtract(wide, b.reduce(wide, (-1,), "maximum", keepdims=True)))
        total = b.reduce(grown, (-1,), keepdims=True)
        return b.divide(grown, total)

    # -- pieces ----------------------------------------------------------------------------------------------------
    def reshaped(self, x: Value, shape: Sequence[int]) -> Value:
        """x in another shape of as many elements."""
        b = self.b
        return self.then(b.reshape(x, shape), lambda dy: self.send_back(x, b.reshape(dy, x.shape)))

    def turned_about(self, x: Value, order: Sequence[int]) -> Value:
        """x with its dimensions in another order, which is its own inverse."""
        b = self.b
        return self.then(b.transpose(x, order), lambda dy: self.send_back(x, b.transpose(dy, order)))

    def cut(self, x: Value, dimension: int, start: int, limit: int) -> Value:
        """Places [start, limit) of a dimension of x."""
        b, size = self.b, x.shape[dimension]
        if (start, limit) == (0, size):
            return x
        low, high = ([n if i == dimension else 0 for i in range(len(x.shape))] for n in (start, size - limit))
        return self.then(b.slice_dim(x, dimension, start, limit), lambda dy: self.send_back(x, b.pad(dy, low, high)))

    def beside(self, x: Value, y: Value, dimension: int) -> Value:
        """x and y, one behind the other."""
        b, ends = self.b, (0, x.shape[dimension], x.shape[dimension] + y.shape[dimension])

        def back(d: Value) -> None:
            for value, start, limit in zip((x, y), ends, ends[1:]):
                self.send_back(value, b.slice_dim(d, dimension, start, limit))

        return self.then(b.concatenate((x, y), dimension), back)

    def moved(self, x: Value, steps: int) -> Value:
        """x [B, S, C] so many places later in its sequence (earlier where negative), zeros in the others."""
        y = self._moved(x, steps)
        return self.then(y, lambda dy: self.send_back(x, self._moved(dy, -steps)))

    def _moved(self, x: Value, steps: int) -> Value:
        low, high, length = max(steps, 0), max(-steps, 0), x.shape[1]
        return self.b.slice_dim(self.b.pad(x, (0, low, 0), (0, high, 0)), 1, high, high + length)

    def filled(self, x: Value, size: int) -> Value:
        """x [B, N, S, D] with zeros behind its columns, which are `size` then."""
        b, columns = self.b, x.shape[3]
        if size == columns:
            return x
        y = b.pad(x, (0, 0, 0, 0), (0, 0, 0, size - columns))
        return self.then(y, lambda d: self.send_back(x, b.slice_dim(d, 3, 0, columns)))

    def repeated(self, x: Value, count: int) -> Value:
        """x [B, 1, S, D] for each of `count` heads."""
        b, inner = self.b, (x.shape[0], *x.shape[2:])
        y = b.broadcast_in_dim(b.reshape(x, inner), (x.shape[0], count, *x.shape[2:]), (0, 2, 3))

        def back(d: Value) -> None:
            self.send_back(x, b.convert(b.reduce(b.convert(d, float32), (1,), keepdims=True), self.form))

        return self.then(y, back)

    def products(self, x: Value, weight: Value) -> Value:
        """x [n, R, K] times weight [n, N, K] -> [n, R, N], each with its own."""
        b, each = self.b, ((0,), (0,))

        def back(dy: Value) -> None:
            self.send_back(weight, b.dot_general(dy, self._again(x), ((1,), (1,)), each))
            self.send_back(x, b.dot_general(dy, weight, ((2,), (1,)), each, dt=self.form))

        return self.then(b.dot_general(x, weight, ((2,), (2,)), each, dt=self.form), back)

    def embedded(self, table: Value, ids: Value) -> Value:
        """Rows of table [V, C] at ids [B, S]."""
        b = self.b
        y = b.take_rows(table, ids)
        rows = table.shape[0]
        return self.then(y, lambda dy: self.send_back(table, b.scatter_add_rows(ids, b.convert(dy, float32), rows)))

    def cross_entropy(self, logits: Value, labels: Value) -> Value:
        """The gradient of the mean cross entropy of logits [B, S, V] against labels [B, S]; the mean is an output."""
        b, count = self.b, labels.type.size
        wide = b.convert(logits, float32)
        shifted = b.subtract(wide, b.reduce(wide, (-1,), "maximum", keepdims=True))
        grown = b.exponential(shifted)
        total = b.reduce(grown, (-1,), keepdims=True)
        picked = b.take_along(shifted, labels)
        self.leave(b.multiply(b.reduce(b.subtract(b.log(b.reshape(total, labels.shape)), picked), (0, 1)), 1 / count))
        hit = b.compare(
            b.iota(logits.shape, int32, 2),
            "EQ",
            b.broadcast_in_dim(labels, logits.shape, (0, 1)),
        )
        rest = b.subtract(b.divide(grown, total), b.convert(hit, float32))
        return b.convert(b.multiply(rest, 1 / count), self.form)
