# SPDX-License-Identifier: Apache-2.0
"""Random graphs whose every value is exact: integers of all widths, truth values, and floats that are only chosen,
compared, cast, moved and rounded. Values are hostile: limits of formats, NaN, infinities, subnormals, signed zeros.

So the chip can be held to the very bits of the interpreter, however ops are fused.
"""

from __future__ import annotations

from math import prod

import numpy as np

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Value
from trnlab.graph.ops import COMPARISONS

INTEGERS = ("int32", "int32", "uint32", "int16", "uint16", "int8", "uint8")
FLOATS = ("float32", "bfloat16", "float16")
SHAPES = ((5, 7), (3, 130), (130, 3), (1, 1), (2, 3, 4), (9,), (0, 4), (1, 33))
LIMITS = (0, 1, -1, 2, 3, 127, 128, -128, 255, 256, 2**15, 2**16 - 1, 2**24, 2**24 + 1, 2**31 - 1, -(2**31), 12345)
HOSTILE = (0.0, -0.0, 1.0, -1.5, 2.5, 255.5, -300.0, 3e9, -3e9, 1e-40, 1e-45, 65504.0, 1e38, np.inf, -np.inf, np.nan)
ARITHMETIC = (
    "add",
    "subtract",
    "multiply",
    "maximum",
    "minimum",
    "and",
    "or",
    "xor",
    "remainder",
    "divide",
    "shift_left",
    "shift_right_logical",
    "shift_right_arithmetic",
)


class WholeGenerator:
    """One random graph. The seed decides everything."""

    def __init__(self, seed: int, ops: int = 12) -> None:
        self.rng = np.random.default_rng([seed, 8])
        self.b = GraphBuilder(f"whole{seed}")
        shape = SHAPES[self.rng.integers(len(SHAPES))]
        self.pool: list[Value] = []
        for kind in (*self.rng.choice(INTEGERS, 3), str(self.rng.choice(FLOATS)), "bool"):
            self.pool.append(self.b.input(f"x{len(self.pool)}", shape, str(kind)))
            if len(shape) > 1 and self.rng.random() < 0.5:
                self.pool.append(self.b.input(f"x{len(self.pool)}", (*shape[:-1], 1), str(kind)))
        self.given = list(self.pool)
        steps = (
            self._arithmetic,
            self._arithmetic,
            self._number,
            self._compare,
            self._select,
            self._cast,
            self._cast,
            self._reduce,
            self._move,
            self._logic,
            self._one,
        )
        for _ in range(ops):
            result = steps[self.rng.integers(len(steps))]()
            if result is not None and result.type.size <= 4000:
                self.pool.append(result)

    def graph(self) -> Graph:
        """All that nothing reads is an output."""
        users = self.b.graph.users()
        for value in self.pool[len(self.given) :]:
            if value not in users or self.rng.random() < 0.2:
                self.b.output(value)
        if not self.b.graph.outputs:
            self.b.output(self.pool[0])
        return self.b.build()

    def inputs(self) -> list[np.ndarray]:
        """Hostile values, a few of each."""
        made = []
        for v in self.b.graph.inputs:
            source = np.array(HOSTILE) if v.dtype.is_float else np.array(LIMITS)
            picked = source[self.rng.integers(len(source), size=v.shape)]
            with np.errstate(all="ignore"):
                made.append((picked & 1 if v.dtype.name == "bool" else picked).astype(v.dtype.numpy))
        return made

    def _pick(self, kinds: str) -> Value | None:
        fits = [v for v in self.pool if v.dtype.kind in kinds]
        return fits[self.rng.integers(len(fits))] if fits else None

    def _partner(self, x: Value) -> Value:
        fits = [v for v in self.pool if v.dtype is x.dtype and _together(v.shape, x.shape)]
        return fits[self.rng.integers(len(fits))]

    def _arithmetic(self) -> Value | None:
        x = self._pick("iu")
        name = str(self.rng.choice(ARITHMETIC))
        if x is None or (x.dtype.name == "uint32" and name in ("divide", "remainder")):
            return None
        return self.b.binary(name, x, self._partner(x))

    def _number(self) -> Value | None:
        x = self._pick("iu")
        name, number = str(self.rng.choice(ARITHMETIC[:8])), int(self.rng.choice([1, 3, 7, 100, 127]))
        return None if x is None else self.b.binary(name, x, number)

    def _compare(self) -> Value | None:
        x = self._pick("iuf")
        return None if x is None else self.b.compare(x, str(self.rng.choice(COMPARISONS)), self._partner(x))

    def _select(self) -> Value | None:
        x, mask = self._pick("iufb"), self._pick("b")
        if x is None or mask is None or not _together(mask.shape, x.shape):
            return None
        other = self._partner(x)
        fits = _together(mask.shape, np.broadcast_shapes(x.shape, other.shape))
        return self.b.select(mask, x, other if fits else x)

    def _cast(self) -> Value | None:
        x = self._pick("iufb")
        return None if x is None else self.b.convert(x, str(self.rng.choice((*INTEGERS, *FLOATS, "bool"))))

    def _reduce(self) -> Value | None:
        x = self._pick("iub")
        if x is None or not x.shape:
            return None
        dims = [d for d in range(len(x.shape)) if self.rng.random() < 0.5] or [len(x.shape) - 1]
        kinds = ("and", "or") if x.dtype.kind == "b" else ("add", "maximum", "minimum", "multiply", "and", "or")
        return self.b.reduce(x, dims, str(self.rng.choice(kinds)), keepdims=bool(self.rng.random() < 0.5))

    def _move(self) -> Value | None:
        x = self._pick("iufb")
        if x is None or not x.shape:
            return None
        kind = self.rng.integers(4)
        if kind == 0:
            return self.b.transpose(x, [int(d) for d in self.rng.permutation(len(x.shape))])
        if kind == 1:
            return self.b.reshape(x, (prod(x.shape),))
        if kind == 2 and x.shape[0]:
            return self.b.slice_dim(x, 0, int(self.rng.integers(x.shape[0])), x.shape[0], 1)
        return self.b.concatenate([x, x], len(x.shape) - 1)

    def _logic(self) -> Value | None:
        x = self._pick("b")
        return None if x is None else self.b.binary(str(self.rng.choice(["and", "or", "xor"])), x, self._partner(x))

    def _one(self) -> Value | None:
        name = str(self.rng.choice(["negate", "abs", "sign", "not", "negate"]))
        x = self._pick("iub" if name == "not" else "iu")
        return None if x is None else self.b.op(name, x)


def _together(a: tuple[int, ...], c: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, c)
    except ValueError:
        return False
    return True
