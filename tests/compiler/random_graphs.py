# SPDX-License-Identifier: Apache-2.0
"""Random graphs of elementwise ops, reductions, broadcasts, reshapes, transposes, slices and products.

Values stay near one, so that errors can be judged on an absolute scale; comparisons read inputs alone, whose bits are
the same everywhere, so that no rounding error flips a choice.
"""

from __future__ import annotations

from math import prod

import numpy as np

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Value

SIZES = (1, 2, 3, 5, 7, 16, 33, 64, 129, 130, 200)
LARGEST = 40_000  # elements of one value


class Generator:
    """One random graph. The seed decides everything."""

    def __init__(self, seed: int, ops: int = 14) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = GraphBuilder(f"random{seed}")
        self.pool: list[Value] = []
        self.fresh: list[Value] = []
        rank = int(self.rng.integers(1, 4))
        shape = tuple(int(self.rng.choice(SIZES)) for _ in range(rank))
        while prod(shape) > LARGEST:
            shape = shape[1:]
        self.given = [self._input(shape), self._input(shape), self._input(shape[-1:])]
        if rank > 1:
            self.given.append(self._input((*shape[:-1], 1)))
        self.pool += self.given
        for _ in range(ops):
            self._step()

    def graph(self) -> Graph:
        """Outputs: what nothing reads, and some that are read too; one in four updates an input in place."""
        users = self.b.graph.users()
        outputs = [v for v in self.fresh if v not in users or self.rng.random() < 0.15]
        free = list(self.given)
        for value in outputs:
            old = next((v for v in free if v.type == value.type), None)
            if old is not None and self.rng.random() < 0.25:
                free.remove(old)
                self.b.output(value, alias_of=old)
            else:
                self.b.output(value)
        return self.b.build()

    def inputs(self) -> list[np.ndarray]:
        rng = np.random.default_rng(len(self.b.graph.ops))
        return [rng.standard_normal(v.shape).astype(np.float32) for v in self.b.graph.inputs]

    def _input(self, shape: tuple[int, ...]) -> Value:
        return self.b.input(f"x{len(self.b.graph.inputs)}", shape, "float32")

    def _pick(self) -> Value:
        weights = np.linspace(1, 3, len(self.pool))
        return self.pool[self.rng.choice(len(self.pool), p=weights / weights.sum())]

    def _step(self) -> None:
        kinds = (
            self._unary,
            self._binary,
            self._binary,
            self._binary,
            self._scalar,
            self._scalar,
            self._reduce,
            self._reduce,
            self._select,
            self._reshape,
            self._transpose,
            self._slice,
            self._dot,
            self._normalise,
            self._round_trip,
            self._join,
            self._iota,
        )
        result = kinds[self.rng.integers(len(kinds))]()
        if result is not None and 0 < result.type.size <= LARGEST:
            self.pool.append(result)
            self.fresh.append(result)

    def _unary(self) -> Value:
        name = self.rng.choice(["tanh", "logistic", "negate", "abs", "sine", "erf"])
        return self.b.op(str(name), self._pick())

    def _binary(self) -> Value | None:
        x = self._pick()
        fits = [y for y in self.pool if _broadcast(x.shape, y.shape) is not None]
        y = fits[self.rng.integers(len(fits))]
        shape = _broadcast(x.shape, y.shape)
        if shape is None or prod(shape) > LARGEST:
            return None
        name = str(self.rng.choice(["add", "subtract", "multiply", "maximum", "minimum", "divide"]))
        if name == "divide":
            y = self.b.add(self.b.abs(y), 1.0)
        x, y = (x, y) if self.rng.random() < 0.5 or name == "divide" else (y, x)
        return self.b.binary(name, x, y)

    def _scalar(self) -> Value:
        name = str(self.rng.choice(["add", "subtract", "multiply", "maximum", "minimum"]))
        x, number = self._pick(), round(float(self.rng.uniform(-1.5, 1.5)), 3)
        return self.b.binary(name, x, number) if self.rng.random() < 0.6 else self.b.binary(name, number, x)

    def _reduce(self) -> Value | None:
        x = self._pick()
        if not x.shape:
            return None
        dims = [d for d in range(len(x.shape)) if self.rng.random() < 0.5] or [len(x.shape) - 1]
        kind = str(self.rng.choice(["add", "add", "maximum", "minimum"]))
        keep = bool(self.rng.random() < 0.6)
        result = self.b.reduce(x, dims, kind, keepdims=keep)
        return self.b.multiply(result, prod(x.shape[d] for d in dims) ** -0.5) if kind == "add" else result

    def _select(self) -> Value:
        x = self._pick()
        masks = [m for m in self.given if _broadcast(m.shape, x.shape) == x.shape]
        if not masks:
            return self.b.clamp(-0.5, x, 0.75)
        mask = self.b.compare(masks[self.rng.integers(len(masks))], str(self.rng.choice(["GT", "LE"])), 0.1)
        others = [y for y in self.pool if _broadcast(y.shape, x.shape) == x.shape]
        other = others[self.rng.integers(len(others))] if self.rng.random() < 0.6 else -0.25
        mask = self.b.broadcast_to(mask, x.shape)
        return self.b.select(mask, x, other) if self.rng.random() < 0.5 else self.b.select(mask, other, x)

    def _reshape(self) -> Value:
        x = self._pick()
        shapes = [(x.type.size,), (1, *x.shape), (*x.shape, 1)]
        if len(x.shape) > 1:
            shapes += [(prod(x.shape[:-1]), x.shape[-1]), (x.shape[0], prod(x.shape[1:]))]
        shapes += [(p, x.type.size // p) for p in (2, 3, 5, 10) if x.type.size % p == 0]
        return self.b.reshape(x, shapes[self.rng.integers(len(shapes))])

    def _transpose(self) -> Value:
        x = self._pick()
        return self.b.transpose(x, [int(d) for d in self.rng.permutation(len(x.shape))])

    def _slice(self) -> Value | None:
        x = self._pick()
        if not x.shape:
            return None
        axis = int(self.rng.integers(len(x.shape)))
        start = int(self.rng.integers(x.shape[axis]))
        return self.b.slice_dim(x, axis, start, x.shape[axis], int(self.rng.integers(1, 3)))

    def _dot(self) -> Value | None:
        x = self._pick()
        fits = [
            (y, i, j)
            for y in self.pool
            for i, m in enumerate(x.shape)
            for j, n in enumerate(y.shape)
            if m == n and x.type.size * y.type.size // (m * n) <= LARGEST
        ]
        if not fits:
            return None
        y, i, j = fits[self.rng.integers(len(fits))]
        return self.b.multiply(self.b.dot_general(x, y, ((i,), (j,))), x.shape[i] ** -0.5)

    def _normalise(self) -> Value | None:
        """Softmax or layer norm over the last dimension."""
        x, b = self._pick(), self.b
        if not x.shape:
            return None
        if self.rng.random() < 0.5:
            grown = b.exponential(b.subtract(x, b.reduce(x, (-1,), "maximum", keepdims=True)))
            return b.divide(grown, b.reduce(grown, (-1,), keepdims=True))
        count = 1 / x.shape[-1]
        centred = b.subtract(x, b.multiply(b.reduce(x, (-1,), keepdims=True), count))
        spread = b.multiply(b.reduce(b.multiply(centred, centred), (-1,), keepdims=True), count)
        return b.multiply(centred, b.rsqrt(b.add(spread, 0.1)))

    def _round_trip(self) -> Value:
        return self.b.convert(self.b.convert(self._pick(), "bfloat16"), "float32")

    def _join(self) -> Value | None:
        x = self._pick()
        if not x.shape:
            return None
        axis = int(self.rng.integers(len(x.shape)))
        if self.rng.random() < 0.5:
            low = [int(self.rng.integers(3)) if d == axis else 0 for d in range(len(x.shape))]
            return self.b.pad(x, low, [1] * len(x.shape), value=0.5)
        others = [y for y in self.pool if y.shape == x.shape]
        return self.b.concatenate([x, others[self.rng.integers(len(others))]], axis)

    def _iota(self) -> Value | None:
        """A causal-like mask made of counters."""
        x = self._pick()
        if len(x.shape) < 2:
            return None
        rows, cols = (self.b.iota(x.shape, "int32", d) for d in (len(x.shape) - 2, len(x.shape) - 1))
        return self.b.select(self.b.compare(rows, "GE", cols), x, 0.125)


def _broadcast(a: tuple[int, ...], c: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return tuple(np.broadcast_shapes(a, c))
    except ValueError:
        return None
