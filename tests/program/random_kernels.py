# SPDX-License-Identifier: Apache-2.0
"""Random kernels as source text, in both dialects, which also runs on NumPy; and a way to shrink one.

    made = RandomKernel(seed, "neuronxcc")
    kernel = made.kernel()                      # from made.source
    print(shrunk(made, fails).source)           # the fewest statements with which `fails` still holds

A kernel loads tiles, computes on them by statements that overwrite, update, rename and alias, in loops and out of
them, writes tensors in HBM and reads them back, updates an argument in place, and stores all tiles at its end.

Tiles are [P=32, W=64] of float32, in blocks of B=16 columns; products are [32, 64] in PSUM.
"""

from __future__ import annotations

import itertools
import linecache
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

P, W, B = 32, 64, 16
TILES, SUMS = 5, 2
OPS = ("add", "subtract", "multiply", "maximum", "minimum")
ALU = {"add": "add", "subtract": "subtract", "multiply": "multiply", "maximum": "maximum", "minimum": "minimum"}
HEAD = {
    "neuronxcc": "import neuronxcc.nki as nki; import neuronxcc.nki.isa as nisa; import neuronxcc.nki.language as nl",
    "nki": "import nki; import nki.isa as nisa; import nki.language as nl",
}
_files = itertools.count()


@dataclass(frozen=True)
class Statement:
    """A line, or a loop with a body."""

    text: str
    body: tuple[Statement, ...] = ()

    def lines(self, indent: int) -> Iterator[str]:
        """Its source."""
        if not self.body and self.text.endswith(":"):
            return
        for line in self.text.split("\n"):
            yield " " * indent + line
        for inner in self.body:
            yield from inner.lines(indent + 4)


@dataclass(frozen=True)
class RandomKernel:
    """The kernel of a seed in a dialect ("neuronxcc" or "nki"); statements: its middle."""

    seed: int
    dialect: str
    statements: tuple[Statement, ...] = ()

    @property
    def source(self) -> str:
        """A function `kernel(x, y, w)` over float32 arrays [32, 320], [32, 64] (updated in place) and [32, 32]."""
        middle = [line for s in self.statements for line in s.lines(4)]
        return "\n".join([*_opening(self.dialect), *middle, *_closing(self.dialect), ""])

    def kernel(self, **options: Any) -> Any:
        """The kernel, decorated."""
        space = self._run("exec-kernel")
        return space["nki"].jit(space["kernel"], **options)

    def on_numpy(self, x: Any, y: Any, w: Any) -> Any:
        """What the same source computes on NumPy arrays."""
        stand_in = NumPyDialect()
        return self._run("exec-numpy", nl=stand_in, nisa=stand_in)["kernel"](x, y, w)

    def _run(self, name: str, **instead: Any) -> dict[str, Any]:
        file = f"<{name} {self.dialect} {self.seed} {next(_files)}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(keepends=True), file)
        space: dict[str, Any] = {"__name__": "random_kernel", **instead}
        if not instead:
            exec(HEAD[self.dialect], space)
        exec(compile(self.source, file, "exec"), space)
        return space


def made(seed: int, dialect: str, count: int = 14) -> RandomKernel:
    """The kernel of a seed, with `count` statements and loops."""
    return RandomKernel(seed, dialect, tuple(_Maker(random.Random(f"{dialect} {seed}"), dialect).statements(count)))


def arguments(seed: int) -> list[np.ndarray]:
    """Arrays for a kernel."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((P, TILES * W), (P, W), (P, P))]


def _opening(dialect: str) -> list[str]:
    lines = [
        "def kernel(x, y, w):",
        f"    out = nl.ndarray(({P}, {(TILES + SUMS) * W}), dtype=nl.float32, buffer=nl.shared_hbm)",
        f"    spare = nl.ndarray(({P}, {W}), dtype=nl.float32, buffer=nl.private_hbm)",
        "    weights = nl.load(w)",
    ]
    lines += [f"    t{i} = nl.load(x[:, {W * i}:{W * i + W}])" for i in range(TILES)]
    lines += ["    nl.store(spare, t0)"]
    for i in range(SUMS):
        if dialect == "neuronxcc":
            lines += [f"    p{i} = nl.zeros(({P}, {W}), dtype=nl.float32, buffer=nl.psum)"]
            lines += [f"    p{i} += nisa.nc_matmul(weights, t{i})"]
        else:
            lines += [f"    p{i} = nl.ndarray(({P}, {W}), dtype=nl.float32, buffer=nl.psum)"]
            lines += [f"    nisa.nc_matmul(dst=p{i}, stationary=weights, moving=t{i})"]
    return lines


def _closing(dialect: str) -> list[str]:
    lines = [f"    nl.store(out[:, {W * i}:{W * i + W}], t{i})" for i in range(TILES)]
    for i in range(SUMS):
        at = W * (TILES + i)
        lines += [f"    nl.store(out[:, {at}:{at + W}], nl.multiply(p{i}, 1.0))"]
    return [*lines, "    return out"]


class _Maker:
    """Chooses statements."""

    def __init__(self, rng: random.Random, dialect: str) -> None:
        self.rng, self.old, self.names = rng, dialect == "neuronxcc", itertools.count()

    def statements(self, count: int) -> Iterator[Statement]:
        """So many, some of them loops."""
        for _ in range(count):
            kind = self.rng.random()
            if kind < 0.12:
                yield self.independent()
            elif kind < 0.24:
                body = tuple(Statement(self.line(inside=True)) for _ in range(self.rng.randint(1, 4)))
                loop = "nl.sequential_range(3)" if self.old else "range(3)"
                yield Statement(f"for i in {self.rng.choice([loop, 'nl.static_range(2)'])}:", body)
            else:
                yield Statement(self.line(inside=False))

    def line(self, inside: bool) -> str:
        """One statement of any kind."""
        kinds = [
            self.compute,
            self.compute,
            self.whole,
            self.update,
            self.update,
            self.by_column,
            self.transfer,
            self.transfer,
            self.product,
            self.product,
            self.activation,
            self.reduction,
            self.transposed,
            self.alias,
            self.from_psum,
            self.in_place,
            *([] if inside else [self.rename, self.rename]),
            self.copied,
            self.twice,
            *([self.masked, self.named_sum, self.sum_in_place, self.added_result] if self.old else []),
        ]
        return self.rng.choice(kinds)()

    # -- parts --------------------------------------------------------------------------------------------------
    def tile(self, *but: str) -> str:
        return self.rng.choice([t for t in (f"t{i}" for i in range(TILES)) if t not in but])

    def columns(self, size: int) -> str:
        start = self.rng.randrange(0, W - size + 1, B // 2)
        return f"[:, {start}:{start + size}]"

    def size(self) -> int:
        return self.rng.choice([B, B, 2 * B, W])

    def number(self) -> float:
        return self.rng.choice([0.5, 0.25, -0.5, 1.5])

    # -- statements on tiles ------------------------------------------------------------------------------------
    def compute(self) -> str:
        """Part of a tile from parts of others, or of itself."""
        n, op = self.size(), self.rng.choice(OPS)
        dst, a, b = (self.tile() + self.columns(n) for _ in range(3))
        if op == "multiply":  # by numbers: values stay small
            b = str(self.number())
        if self.old:
            return f"{dst} = nl.{op}({a}, {b})"
        if op == "multiply":
            return f"nisa.tensor_scalar(dst={dst}, data={a}, op0=nl.multiply, operand0={b})"
        return f"nisa.tensor_tensor(dst={dst}, data1={a}, data2={b}, op=nl.{op})"

    def whole(self) -> str:
        """A tile is overwritten as a whole, which `versions` renames."""
        dst, a, b = self.tile(), self.tile(), self.tile()
        if self.old:
            return f"{dst}[...] = nl.subtract({a}, {b})"
        return f"nisa.tensor_tensor(dst={dst}, data1={a}, data2={b}, op=nl.subtract)"

    def rename(self) -> str:
        """The name stands for a new tile."""
        return f"{self.tile()} = nl.{self.rng.choice(['add', 'maximum'])}({self.tile()}, {self.tile()})"

    def update(self) -> str:
        n = self.size()
        dst, a = self.tile() + self.columns(n), self.tile() + self.columns(n)
        op = self.rng.choice(["+", "-", "*"])
        if self.old:
            return f"{dst} {op}= {a if op != '*' else self.number()}"
        if op == "*":
            return f"nisa.tensor_scalar(dst={dst}, data={dst}, op0=nl.multiply, operand0={self.number()})"
        name = "add" if op == "+" else "subtract"
        return f"nisa.tensor_tensor(dst={dst}, data1={dst}, data2={a}, op=nl.{name})"

    def in_place(self) -> str:
        """An argument is read, changed and written back."""
        t = self.tile()
        loaded = f"{t}[...] = nl.load(y)" if self.old else f"nisa.dma_copy(dst={t}, src=y)"
        changed = f"{t} += 1.0" if self.old else f"nisa.tensor_scalar(dst={t}, data={t}, op0=nl.add, operand0=1.0)"
        return "\n".join([loaded, changed, f"nl.store(y, {t})"])

    def by_column(self) -> str:
        """A column that all others are combined with."""
        at, t, a = self.rng.randrange(W), self.tile(), self.tile()
        if self.old:
            return f"{t}[...] = nl.maximum({a}, {a}[:, {at}:{at + 1}])"
        return f"nisa.tensor_scalar(dst={t}, data={a}, op0=nl.maximum, operand0={a}[:, {at}:{at + 1}])"

    def transfer(self) -> str:
        """From and to HBM, of which some is read back."""
        n = self.size()
        t, there = self.tile() + self.columns(n), "spare" + self.columns(n)
        if self.rng.random() < 0.5:
            return f"nl.store({there}, {t})" if self.old else f"nisa.dma_copy(dst={there}, src={t})"
        return f"{t} = nl.load({there})" if self.old else f"nisa.dma_copy(dst={t}, src={there})"

    def activation(self) -> str:
        n = self.size()
        dst, a = self.tile() + self.columns(n), self.tile() + self.columns(n)
        name = self.rng.choice(["tanh", "relu", "sigmoid"])
        if self.old:
            return f"{dst} = nisa.activation(nl.{name}, {a})"
        return f"nisa.activation(dst={dst}, op=nl.{name}, data={a})"

    def reduction(self) -> str:
        """A row maximum, taken off again."""
        name, t, a = f"m{next(self.names)}", self.tile(), self.tile()
        if self.old:
            return f"{name} = nl.max({a}, axis=1, keepdims=True)\n{t}[...] = nl.subtract({a}, {name})"
        return (
            f"{name} = nl.max({a}, axis=1, keepdims=True)\n"
            f"nisa.tensor_scalar(dst={t}, data={a}, op0=nl.subtract, operand0={name})"
        )

    def alias(self) -> str:
        """Another name for a part of a tile, through which it is changed."""
        name, n, t, a = f"v{next(self.names)}", self.size(), self.tile(), self.tile()
        first = f"{name} = {t}{self.columns(n)}"
        if self.old:
            change = self.rng.choice([f"{name} += 1.0", f"{name}[...] = nl.add({name}, {a}{self.columns(n)})"])
            return f"{first}\n{change}"
        return f"{first}\nnisa.tensor_tensor(dst={name}, data1={name}, data2={a}{self.columns(n)}, op=nl.add)"

    def masked(self) -> str:
        """Only some columns of a result are defined."""
        n, kept = self.size(), self.rng.randint(1, B)
        dst, a = self.tile() + self.columns(n), self.tile() + self.columns(n)
        return f"{dst} = nl.add({a}, 1.0, mask=(nl.arange({n})[None, :] < {kept}))"

    def copied(self) -> str:
        """A tile is copied, or gets a second name; then one of the two changes."""
        a, b, name = self.tile(), self.tile(), f"n{next(self.names)}"
        if self.rng.random() < 0.5:
            first = f"{a}[...] = {b}" if self.old else f"nisa.tensor_copy(dst={a}, src={b})"
            name = b
        else:
            first = f"{name} = {a}"
        if self.old:
            return f"{first}\n{name} {self.rng.choice(['+=', '-=', '*='])} {self.number()}"
        return f"{first}\nnisa.tensor_scalar(dst={name}, data={name}, op0=nl.add, operand0={self.number()})"

    def twice(self) -> str:
        """A result is assigned twice, changed, and assigned once more."""
        name, (a, b, c) = f"r{next(self.names)}", (self.tile() for _ in range(3))
        made = self.rng.choice([f"nl.add({a}, {b})", f"nl.multiply({a}, {self.number()})"])
        if self.old and self.rng.random() < 0.4:
            made = f"nisa.nc_matmul(weights, {a})"
        if self.old:
            lines = [f"{a}[...] = {name}", f"{b}[...] = {name}", f"{name} += 1.0", f"{c}[...] = {name}"]
        else:
            add = f"nisa.tensor_scalar(dst={name}, data={name}, op0=nl.add, operand0=1.0)"
            lines = [f"nisa.tensor_copy(dst={dst}, src={name})" for dst in (a, b)]
            lines += [add, f"nisa.tensor_copy(dst={c}, src={name})"]
        return "\n".join([f"{name} = {made}", *lines])

    # -- statements on sums -------------------------------------------------------------------------------------
    def product(self) -> str:
        """A product overwrites a sum, or is added to it."""
        p, n = f"p{self.rng.randrange(SUMS)}", self.rng.choice([B, W])
        part, moving = p + self.columns(n), self.tile() + self.columns(n)
        fixed = self.rng.choice(["weights", self.tile() + "[:, 0:32]"])
        adds = self.rng.random() < 0.5
        if self.old:
            return f"{part} {'+=' if adds else '='} nisa.nc_matmul({fixed}, {moving})"
        more = f", accumulate={adds}"
        return f"nisa.nc_matmul(dst={part}, stationary={fixed}, moving={moving}{more})"

    def named_sum(self) -> str:
        """A product with a name, or no product at all, added to a sum in PSUM."""
        p, name = f"p{self.rng.randrange(SUMS)}", f"s{next(self.names)}"
        if self.rng.random() < 0.5:
            return f"{name} = nisa.nc_matmul(weights, {self.tile()})\n{p} += {name}"
        return f"{p} += nisa.tensor_tensor({self.tile()}, {self.tile()}, op=nl.{self.rng.choice(OPS[:2])})"

    def sum_in_place(self) -> str:
        """A sum in PSUM is changed by something that is no matmul."""
        p = f"p{self.rng.randrange(SUMS)}"
        return self.rng.choice([f"{p} *= 0.5", f"{p} -= {self.tile()}", f"{p} += 1.0", f"{p}[:, 16:32] *= -0.5"])

    def added_result(self) -> str:
        """A result without a name is added, to a tile or a sum, of which it reads a part itself."""
        n, p = self.size(), f"p{self.rng.randrange(SUMS)}"
        dst = self.rng.choice([self.tile(), p]) + self.columns(n)
        made = self.rng.choice(
            [
                f"nisa.activation(nl.tanh, {self.tile()}{self.columns(n)})",
                f"nl.multiply({p}{self.columns(n)}, 0.5)",
                f"nl.add({dst}, {self.tile()}{self.columns(n)})",
                f"nl.load(spare{self.columns(n)})",
                f"nisa.nc_matmul(weights, {self.tile()}{self.columns(n)})",
            ]
        )
        return f"{dst} {self.rng.choice(['+=', '-=', '='])} {made}"

    def from_psum(self) -> str:
        n, p = self.size(), f"p{self.rng.randrange(SUMS)}"
        dst, part = self.tile() + self.columns(n), p + self.columns(n)
        if self.old:
            return f"{dst} = nl.multiply({part}, {self.number()})"
        return f"nisa.tensor_scalar(dst={dst}, data={part}, op0=nl.multiply, operand0={self.number()})"

    def transposed(self) -> str:
        dst, a = f"{self.tile()}[:, 0:32]", f"{self.tile()}[:, 32:64]"
        if self.old:
            return f"{dst} = nisa.nc_transpose({a})"
        name = f"q{next(self.names)}"
        return "\n".join(
            [
                f"{name} = nl.ndarray(({P}, {P}), dtype=nl.float32, buffer=nl.psum)",
                f"nisa.nc_transpose(dst={name}, data={a})",
                f"nisa.tensor_copy(dst={dst}, src={name})",
            ]
        )

    # -- loops --------------------------------------------------------------------------------------------------
    def independent(self) -> Statement:
        """A loop of independent iterations: block by block, or a sum."""
        dst = self.tile()
        a, b = self.tile(dst), self.tile(dst)
        block, name = f"[:, nl.ds({B} * i, {B})]", f"u{next(self.names)}"
        if not self.old:
            block = f"[:, {B} * i:{B} * i + {B}]"
        number = self.number()
        first = f"{name} = nl.multiply({a}{block}, {number})"
        if self.old:
            body = [first, f"{dst}{block} = nl.add({name}, {b}{block})"]
        else:
            body = [first, f"nisa.tensor_tensor(dst={dst}{block}, data1={name}, data2={b}{block}, op=nl.add)"]
        if self.old and self.rng.random() < 0.3:
            p = f"p{self.rng.randrange(SUMS)}"
            body = [f"{p} += nisa.nc_matmul({a}{block}, {b}{block})"]
            body[0] = f"{p}[0:{P}, :] += nisa.nc_matmul({a}[:, 0:{P}], {b})"
        elif self.rng.random() < 0.4:
            body.append(
                f"nl.store(spare{block}, {name})" if self.old else f"nisa.dma_copy(dst=spare{block}, src={name})"
            )
        return Statement(f"for i in nl.affine_range({W // B}):", tuple(map(Statement, body)))


# -- the same source on NumPy ---------------------------------------------------------------------------------------
class _Array(np.ndarray):
    """An array into which only the defined part of a masked result is written."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ma.MaskedArray):
            value = np.where(value.mask, self[key], value.data)
        super().__setitem__(key, value)


class NumPyDialect:
    """nl and nisa, for the statements above, on NumPy arrays in float32; products in float64."""

    float32, psum, sbuf, shared_hbm, private_hbm = np.float32, "psum", "sbuf", "hbm", "hbm"
    affine_range = sequential_range = static_range = staticmethod(range)
    arange = staticmethod(np.arange)

    @staticmethod
    def ds(start: int, size: int) -> slice:
        return slice(start, start + size)

    @staticmethod
    def ndarray(shape: Any, dtype: Any, buffer: Any) -> Any:
        return np.full(shape, np.nan, dtype).view(_Array)

    @staticmethod
    def zeros(shape: Any, dtype: Any, buffer: Any) -> Any:
        return np.zeros(shape, dtype).view(_Array)

    @staticmethod
    def load(src: Any) -> Any:
        return np.array(src).view(_Array)

    @staticmethod
    def store(dst: Any, value: Any) -> None:
        dst[...] = value

    def __getattr__(self, name: str) -> Any:
        if name in ("tanh", "maximum", "subtract", "multiply", "minimum"):
            return _taking_mask(getattr(np, name))
        return {"relu": lambda a: np.maximum(a, np.float32(0)), "sigmoid": _sigmoid}[name]

    @staticmethod
    def add(a: Any, b: Any, mask: Any = None) -> Any:
        return _taking_mask(np.add)(a, b, mask=mask)

    @staticmethod
    def max(a: Any, axis: int, keepdims: bool) -> Any:
        return np.max(a, axis=axis, keepdims=keepdims)

    @staticmethod
    def nc_matmul(
        *operands: Any, dst: Any = None, stationary: Any = None, moving: Any = None, accumulate: Any = False
    ) -> Any:
        a, b = operands or (stationary, moving)
        result = (np.asarray(a, np.float64).T @ np.asarray(b, np.float64)).astype(np.float32).view(_Array)
        if dst is None:
            return result
        dst[...] = dst + result if accumulate else result
        return None

    @staticmethod
    def nc_transpose(*operands: Any, dst: Any = None, data: Any = None) -> Any:
        if dst is None:
            return operands[0].T.copy()
        dst[...] = data.T
        return None

    @staticmethod
    def tensor_tensor(*operands: Any, dst: Any = None, data1: Any = None, data2: Any = None, op: Any = None) -> Any:
        result = op(*(operands or (data1, data2)))
        if dst is None:
            return result
        dst[...] = result
        return None

    @staticmethod
    def tensor_scalar(dst: Any, data: Any, op0: Any, operand0: Any) -> None:
        dst[...] = op0(data, operand0)

    @staticmethod
    def activation(*operands: Any, dst: Any = None, op: Any = None, data: Any = None) -> Any:
        if dst is None:
            return operands[0](operands[1])
        dst[...] = op(data)
        return None

    @staticmethod
    def tensor_copy(dst: Any, src: Any) -> None:
        dst[...] = src

    dma_copy = tensor_copy
    copy = staticmethod(np.copy)


def _sigmoid(a: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-a))


def _taking_mask(function: Any) -> Any:
    def masked(*operands: Any, mask: Any = None) -> Any:
        result = function(*(o if isinstance(o, np.ndarray) else np.float32(o) for o in operands))
        if mask is None:
            return result
        return np.ma.MaskedArray(result, mask=~np.broadcast_to(mask, result.shape))

    return masked


# -- shrinking ------------------------------------------------------------------------------------------------------
def shrunk(kernel: RandomKernel, fails: Callable[[RandomKernel], bool]) -> RandomKernel:
    """The kernel with as few statements as `fails` allows, found by leaving out one after the other."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(kernel):
            if fails(smaller):
                kernel, changed = smaller, True
                break
    return kernel


def _smaller(kernel: RandomKernel) -> Iterator[RandomKernel]:
    """The kernel without one statement, with one loop unrolled once, or without one statement of a loop."""
    s = kernel.statements
    for i in reversed(range(len(s))):
        yield replace(kernel, statements=s[:i] + s[i + 1 :])
    for i, loop in enumerate(s):
        for j in reversed(range(len(loop.body))):
            body = loop.body[:j] + loop.body[j + 1 :]
            yield replace(kernel, statements=(*s[:i], replace(loop, body=body), *s[i + 1 :]))
