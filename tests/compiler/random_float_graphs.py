# SPDX-License-Identifier: Apache-2.0
"""Random graphs of floats in three formats, fed with hostile values: NaN, infinities, both zeros, subnormals, and
magnitudes from the smallest to the largest. Everything is judged op by op (`float_bounds`), so values need not stay
near one."""

from __future__ import annotations

from math import inf, nan, prod

import numpy as np

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Value
from trnlab.graph.ops import COMPARISONS
from trnlab.numerics.dtypes import int32

FORMATS = ("float32", "float32", "bfloat16", "float16")
SHAPES = ((5, 7), (3, 130), (130, 3), (1, 1), (2, 3, 4), (9,), (1, 33), (40, 17))
HOSTILE = (0.0, -0.0, 1.0, -1.5, 2.5, 1e-45, -3e-41, 1.2e-38, -1e-38, 1e38, -3.4e38, 65504.0, -6e-8, inf, -inf, nan)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, 1e-38, 1e30, -1e-30, inf, -inf)
ARITHMETIC = ("add", "add", "subtract", "multiply", "multiply", "maximum", "minimum", "divide", "remainder", "power")
UNARY = (
    "negate",
    "abs",
    "sign",
    "floor",
    "ceil",
    "round_nearest_even",
    "exponential",
    "exponential_minus_one",
    "log",
    "log_plus_one",
    "sqrt",
    "rsqrt",
    "tanh",
    "logistic",
    "erf",
    "atan",
    "sine",
    "cosine",
)


class FloatGenerator:
    """One random graph. The seed decides everything."""

    def __init__(self, seed: int, ops: int = 12) -> None:
        self.rng = np.random.default_rng([seed, 21])
        self.b = GraphBuilder(f"floats{seed}")
        shape = SHAPES[self.rng.integers(len(SHAPES))]
        self.pool: list[Value] = []
        for kind in self.rng.choice(FORMATS, 3):
            self.pool.append(self.b.input(f"x{len(self.pool)}", shape, str(kind)))
            if len(shape) > 1 and self.rng.random() < 0.5:
                self.pool.append(self.b.input(f"x{len(self.pool)}", (*shape[:-1], 1), str(kind)))
        self.masks: list[Value] = []
        self.given = list(self.pool)
        steps = (
            self._arithmetic,
            self._arithmetic,
            self._number,
            self._number,
            self._unary,
            self._unary,
            self._compare,
            self._select,
            self._cast,
            self._reduce,
            self._move,
            self._clamp,
            self._dot,
            self._rows,
        )
        for _ in range(ops):
            result = steps[self.rng.integers(len(steps))]()
            if result is not None and result.type.size <= 9000:
                self.pool.append(result)

    def graph(self) -> Graph:
        """All that nothing reads is an output."""
        users = self.b.graph.users()
        for value in (*self.pool[len(self.given) :], *self.masks):
            if value not in users or self.rng.random() < 0.2:
                self.b.output(value)
        if not self.b.graph.outputs:
            self.b.output(self.b.negate(self.pool[0]))
        return self.b.build()

    def inputs(self) -> list[np.ndarray]:
        """Normal numbers over many magnitudes, and in one of three graphs a tenth of hostile ones, or all."""
        share = (0.0, 0.1, 1.0)[self.rng.integers(3)]
        made = []
        for v in self.b.graph.inputs:
            plain = self.rng.standard_normal(v.shape) * 10.0 ** self.rng.integers(-2, 3, v.shape)
            hostile = self.rng.choice(HOSTILE, v.shape)
            with np.errstate(all="ignore"):
                made.append(np.where(self.rng.random(v.shape) < share, hostile, plain).astype(v.dtype.numpy))
        return made

    def _pick(self) -> Value:
        return self.pool[self.rng.integers(len(self.pool))]

    def _partner(self, x: Value) -> Value:
        fits = [v for v in self.pool if v.dtype is x.dtype and _together(v.shape, x.shape)]
        return fits[self.rng.integers(len(fits))]

    def _arithmetic(self) -> Value:
        x = self._pick()
        return self.b.binary(str(self.rng.choice(ARITHMETIC)), x, self._partner(x))

    def _number(self) -> Value:
        x, name, number = self._pick(), str(self.rng.choice(ARITHMETIC)), float(self.rng.choice(NUMBERS))
        return self.b.binary(name, x, number) if self.rng.random() < 0.6 else self.b.binary(name, number, x)

    def _unary(self) -> Value:
        return self.b.op(str(self.rng.choice(UNARY)), self._pick())

    def _compare(self) -> None:
        x = self._pick()
        if self.rng.random() < 0.2:
            self.masks.append(self.b.is_finite(x))
        else:
            self.masks.append(self.b.compare(x, str(self.rng.choice(COMPARISONS)), self._partner(x)))

    def _select(self) -> Value | None:
        x, other = self._pick(), float(self.rng.choice(NUMBERS))
        masks = [m for m in self.masks if m.shape == x.shape]
        if not masks:
            return None
        mask, partner = masks[self.rng.integers(len(masks))], self._partner(x)
        rest = partner if self.rng.random() < 0.5 and partner.shape == x.shape else other
        return self.b.select(mask, x, rest) if self.rng.random() < 0.5 else self.b.select(mask, rest, x)

    def _clamp(self) -> Value:
        return self.b.clamp(
            -float(self.rng.choice([0.0, 1.0, inf])), self._pick(), float(self.rng.choice([0.5, 1e30]))
        )

    def _cast(self) -> Value:
        return self.b.convert(self._pick(), str(self.rng.choice(FORMATS)))

    def _reduce(self) -> Value | None:
        x = self._pick()
        if not x.shape:
            return None
        dims = [d for d in range(len(x.shape)) if self.rng.random() < 0.5] or [len(x.shape) - 1]
        kind = str(self.rng.choice(["add", "add", "maximum", "minimum"]))
        return self.b.reduce(x, dims, kind, keepdims=bool(self.rng.random() < 0.5))

    def _dot(self) -> Value | None:
        x = self._pick()
        fits = [
            (y, i, j)
            for y in self.pool
            for i, m in enumerate(x.shape)
            for j, n in enumerate(y.shape)
            if m == n and y.dtype is x.dtype and x.type.size * y.type.size // (m * n) <= 9000
        ]
        if not fits:
            return None
        y, i, j = fits[self.rng.integers(len(fits))]
        return self.b.dot_general(x, y, ((i,), (j,)))

    def _rows(self) -> Value | None:
        """Rows of a table taken or summed by index."""
        x = self._pick()
        if len(x.shape) != 2:
            return None
        ids = self.b.constant(self.rng.integers(0, x.shape[0], x.shape[0]).astype(np.int32), int32, x.shape[:1])
        if self.rng.random() < 0.5:
            return self.b.take_rows(x, ids)
        return self.b.scatter_add_rows(ids, x, x.shape[0] + int(self.rng.integers(3)))

    def _move(self) -> Value | None:
        x = self._pick()
        if not x.shape:
            return None
        kind = self.rng.integers(5)
        if kind == 0:
            return self.b.transpose(x, [int(d) for d in self.rng.permutation(len(x.shape))])
        if kind == 1:
            return self.b.reshape(x, (prod(x.shape),))
        if kind == 2:
            return self.b.slice_dim(x, 0, int(self.rng.integers(x.shape[0])), x.shape[0], 1)
        if kind == 3:
            return self.b.pad(x, [1] * len(x.shape), [0] * len(x.shape), value=float(self.rng.choice(NUMBERS)))
        return self.b.concatenate([x, x], len(x.shape) - 1)


def _together(a: tuple[int, ...], c: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, c)
    except ValueError:
        return False
    return True
