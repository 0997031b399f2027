# SPDX-License-Identifier: Apache-2.0
"""What a layer asks of one GPU, read from the graph that the model's own `forward` makes of it.

Of a layer's forward pass: products with weights, attention's core, streams through memory, what ranks of a tensor
group exchange, rows that go to experts, and what is kept for the backward pass. Ops say by their origin what they
belong to; those of no origin cost nothing. An architecture that is put together from the same layers is read without
a word here.

The graph has all rows on each rank; with sequence parallelism those that lie between a sum over the tensor group and
the gather that follows are divided by `spread` here, so that a sequence need not divide evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any

from trnlab.fleet.gpus.costs import HALF
from trnlab.fleet.layers.shares import DecoderShare, ShardSpec
from trnlab.fleet.layers.sizes import Attention, Experts
from trnlab.fleet.models.counts import Counting
from trnlab.graph.ir import Op, Value
from trnlab.graph.passes.dead import remove_dead_ops

MANY = 256  # sequences that a graph is read with, once for all microbatches: so many fill places of experts evenly
MASK = 1  # bytes of an element of a dropout's mask
STREAMED = ("norm", "residual", "activation")  # biases and angles are added where a product is read or written
GATHERED, SUMMED = "gathered", "summed"
_SAME = ("reshape", "transpose", "convert")  # of what is kept


@dataclass(frozen=True)
class AttentionCore:
    """Attention between its projections: `count` heads of all sequences, each of `length` queries and `keys` keys of
    `size` columns, and values of `value_size`."""

    count: float
    length: int
    keys: int
    size: int
    value_size: int
    causal: bool

    @property
    def scores(self) -> float:
        """Pairs of a query and a key."""
        return self.count * self.length * self.keys


@dataclass(frozen=True)
class TensorExchange:
    """Bytes that a tensor group gathers, and bytes that it then adds up, each of all its ranks together."""

    gathered: float
    summed: float


@dataclass(frozen=True)
class Reading:
    """A forward pass."""

    # rows, columns that are added up, columns, and how many of them
    products: tuple[tuple[float, int, int, int], ...]
    cores: tuple[AttentionCore, ...]
    streams: tuple[float, ...]  # bytes read and written
    exchanges: tuple[TensorExchange, ...]
    sent: tuple[float, ...]  # bytes of a rank's rows for experts, each time that they go or come back
    kept: float  # bytes of activations, without those of scores
    # entering, leaving: elements of what goes in and out
    entering: float
    leaving: float

    def times(self, n: float) -> Reading:
        """The reading of n times as many sequences."""
        return Reading(
            tuple((n * rows, added, width, count) for rows, added, width, count in self.products),
            tuple(replace(core, count=n * core.count) for core in self.cores),
            tuple(n * nbytes for nbytes in self.streams),
            tuple(TensorExchange(n * x.gathered, n * x.summed) for x in self.exchanges),
            tuple(n * nbytes for nbytes in self.sent),
            n * self.kept,
            n * self.entering,
            n * self.leaving,
        )


@cache
def of_block(block: Any, spec: ShardSpec, spread: int) -> Reading:
    """A block (see `transformer.Block`) on a rank with this share. spread: ranks that divide what lies between
    products."""
    return _of_block(block, replace(spec, batch=MANY), spread).times(spec.batch / MANY)


@cache
def of_head(model: Any, spec: ShardSpec, spread: int) -> Reading:
    """What follows the last block of a model (see `transformer.Model`)."""
    return _of_head(model, replace(spec, batch=MANY), spread).times(spec.batch / MANY)


@cache
def _of_block(block: Any, spec: ShardSpec, spread: int) -> Reading:
    return _read(lambda layers, x: block.forward(layers, "block", x), block.hidden, spec, spread)


@cache
def _of_head(model: Any, spec: ShardSpec, spread: int) -> Reading:
    return _read(model.head, model.hidden, spec, spread)


class _Layers(Counting):
    """Layers with all rows on each rank. cores: what each attention is, with what it reads and makes."""

    def __init__(self, spec: ShardSpec) -> None:
        super().__init__("read", spec)
        self.cores: list[tuple[AttentionCore, tuple[Value, ...]]] = []
        self._gathered: dict[Value, Value] = {}

    def local(self, hidden: int) -> tuple[int, int, int]:
        """[B, S, H]."""
        return self.share.batch, self.share.tokens, hidden

    def read(self, hidden: int) -> tuple[int, int, int]:
        """The same of what an encoder made."""
        assert isinstance(self.share, DecoderShare)
        return self.share.batch, self.share.memory, hidden

    def gathered(self, x: Value) -> Value:
        """x, which is gathered once for all that read it."""
        if x not in self._gathered:
            with self.part_of(GATHERED):
                self._gathered[x] = self.b.optimization_barrier(x)
        return self._gathered[x]

    def scattered(self, x: Value) -> Value:
        """x, whose parts of all ranks are added up."""
        with self.part_of(SUMMED):
            return self.b.optimization_barrier(x)

    def experts(self, name: str, experts: Experts, x: Value) -> Value:
        """With as many rows as an even router sends, of which none is dropped."""
        return super().experts(name, replace(experts, capacity=1.0), x)

    def attended(self, name: str, a: Attention, q: Value, k: Value, v: Value) -> Value:
        """Something of the result's shape."""
        with self.part_of("attention"):
            out = self.b.optimization_barrier(super().attended(name, a, q, k, v))
        (batch, heads, length, size), (keys, value_size) = q.shape, v.shape[2:]
        self.cores.append((AttentionCore(batch * heads, length, keys, size, value_size, a.causal), (q, k, v, out)))
        return out


def _read(forward: Callable[[_Layers, Value], Value], hidden: int, spec: ShardSpec, spread: int) -> Reading:
    layers = _Layers(spec)
    x = layers.given(layers.local(hidden))
    y = forward(layers, x)
    for value in (y, *(value for _, values in layers.cores for value in values)):
        layers.b.output(value)
    remove_dead_ops(layers.b.graph)
    return _Reader(layers, spread).reading(x, y)


@dataclass
class _Kernel:
    """Connected ops of one origin, which run as one; what it reads and writes, weights left out."""

    ops: list[Op]
    read: list[Value] = field(default_factory=list)
    written: list[Value] = field(default_factory=list)

    @property
    def origin(self) -> str:
        """That of its ops."""
        return self.ops[0].origin

    @property
    def residual(self) -> bool:
        """Whether it adds to what goes past a layer, behind a dropout."""
        return self.origin == "residual"


class _Reader:
    """Reads the ops of layers. whole: values whose rows are not divided."""

    def __init__(self, layers: _Layers, spread: int) -> None:
        self.layers, self.spread, self.ops = layers, spread, layers.b.graph.ops
        self.whole: set[Value] = set()
        for op in self.ops:
            if op.origin == GATHERED or (op.origin != SUMMED and not self.whole.isdisjoint(op.operands)):
                self.whole.update(op.results)
        self.kernels = _kernels(layers)

    def reading(self, x: Value, y: Value) -> Reading:
        """The reading of layers that make y of x."""
        return Reading(
            products=self._products(),
            cores=tuple(core for core, _ in self.layers.cores),
            streams=tuple(self._streams()),
            exchanges=tuple(_exchanges(self.ops)),
            sent=tuple(HALF * self._elements([op.result]) for op in self.ops if op.origin == "exchange"),
            kept=self._kept(),
            entering=self._elements([x]),
            leaving=self._elements([y]),
        )

    def _elements(self, values: Iterable[Value]) -> float:
        """Elements on a rank."""
        return sum(value.type.size / (1 if value in self.whole else self.spread) for value in values)

    def _products(self) -> tuple[tuple[float, int, int, int], ...]:
        """Products with weights; those of the same rows are one, as wide as all together."""
        widths: dict[tuple[Value, str, int, int], int] = {}
        for op in _of_weights(self.ops):
            rows, weight = op.operands
            count = prod(rows.shape[d] for d in op.attrs["lhs_batching_dimensions"])
            added = prod(rows.shape[d] for d in op.attrs["lhs_contracting_dimensions"])
            key = rows, op.origin, added, count
            widths[key] = widths.get(key, 0) + weight.type.size // (added * count)
        return tuple(
            (self._elements([rows]) / (added * count), added, width, count)
            for (rows, _, added, count), width in widths.items()
        )

    def _streams(self) -> Iterator[float]:
        """Bytes of each kernel between products: what it reads and writes, with the mask of a dropout before a sum;
        and of rows that are put in order of their experts and back."""
        for kernel in self.kernels:
            nbytes = HALF * self._elements([*kernel.read, *kernel.written])
            yield nbytes + (MASK * self._elements(kernel.written) if kernel.residual else 0)
        for op in self.ops:
            if op.origin == "permute" and op.name == "gather":
                yield 2 * HALF * self._elements([op.result])

    def _kept(self) -> float:
        """Bytes of what the backward pass reads, each value once (Korthikanti et al. 2022, section 4.1): inputs of
        norms, products and activations, all of attention's core, rows that experts made, masks. What came from
        elsewhere, as an encoder's output for a decoder's blocks, is kept there."""
        read = [op.operands[0] for op in _of_weights(self.ops)]
        read += [value for _, values in self.layers.cores for value in values]
        read += [op.operands[0] for op in self.ops if op.origin == "permute" and op.name == "multiply"]
        read += [value for kernel in self.kernels if not kernel.residual for value in kernel.read]
        kept = [value for value in dict.fromkeys(map(_source, read)) if value not in self.layers.received]
        masks = (self._elements(kernel.written) for kernel in self.kernels if kernel.residual)
        return HALF * self._elements(kept) + MASK * sum(masks)


def _kernels(layers: _Layers) -> list[_Kernel]:
    """An op joins the one that made its operand, where nothing else reads that."""
    graph, weights, found = layers.b.graph, set(layers.weights.values()), dict[Op, _Kernel]()
    users = graph.users()
    for op in (op for op in graph.ops if op.origin in STREAMED):
        mine = found[op] = _Kernel([op])
        for value in op.operands:
            before = None if value.op is None else found.get(value.op)
            if before is None or before is mine or any(x.origin != before.origin for x in (op, *users[value])):
                continue
            before.ops += mine.ops
            found.update(dict.fromkeys(mine.ops, before))
            mine = before
    kernels = list({id(kernel): kernel for kernel in found.values()}.values())
    for kernel in kernels:
        inside = set(kernel.ops)
        read = dict.fromkeys(value for op in kernel.ops for value in op.operands)
        kernel.read = [value for value in read if value not in weights and value.op not in inside]
        made = [value for op in kernel.ops for value in op.results]
        kernel.written = [value for value in made if value not in users or not inside.issuperset(users[value])]
    return kernels


def _of_weights(ops: Iterable[Op]) -> Iterator[Op]:
    return (op for op in ops if op.name == "dot_general" and op.origin in ("linear", "router"))


def _source(value: Value) -> Value:
    """What a value is in other order, format or place."""
    while value.op is not None and (value.op.name in _SAME or value.op.origin in (GATHERED, "exchange")):
        value = value.op.operands[0]
    return value


def _exchanges(ops: Iterable[Op]) -> Iterator[TensorExchange]:
    """Each sum, with what is gathered before it."""
    gathered = 0.0
    for op in ops:
        if op.origin == GATHERED:
            gathered += HALF * op.result.type.size
        elif op.origin == SUMMED:
            yield TensorExchange(gathered, HALF * op.result.type.size)
            gathered = 0.0
    if gathered:
        yield TensorExchange(gathered, 0.0)
