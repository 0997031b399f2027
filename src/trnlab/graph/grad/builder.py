# SPDX-License-Identifier: Apache-2.0
"""A builder that differentiates what it has recorded.

    b = GradientBuilder("step")
    x, w = b.input("x", (8, 128), bfloat16), b.input("w", (64, 128), bfloat16)
    y = b.dot_general(x, w, ((1,), (1,)), dt=bfloat16)
    gradients = b.gradients({y: b.input("dy", y.shape, bfloat16)}, [x, w], in_float32=[w])

The backward pass is appended behind the forward pass, in one graph, op by op in reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.grad.context import no_derivative
from trnlab.graph.grad.rules import RULES
from trnlab.graph.ir import Op, Value
from trnlab.numerics.dtypes import DType, float32

# Gradients of the inputs (None where there is none) from that of the first result, the inputs, and all results.
Backward = Callable[[Value, Sequence[Value], Sequence[Value]], Sequence[Value | None]]
_EXPANDING = ("convert", "reshape", "broadcast_in_dim")


@dataclass
class GradientRegion:
    """Ops that are differentiated as one."""

    nodes: list[Node]
    inputs: tuple[Value, ...]  # what of it comes from outside and is treated apart
    results: tuple[Value, ...]
    backward: Backward | None  # its derivative, or None where the backward pass computes its ops once more


Node = Op | GradientRegion


class GradientBuilder(GraphBuilder):
    """A GraphBuilder whose graph can be differentiated, see the head of this module."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._nodes: list[Node] = []
        self.kept: set[Value] = set()  # that are kept for the backward pass, though they could be made again

    def append(self, name: str, operands: Sequence[Value], attrs: dict[str, Any]) -> Op:
        """Append an op, as `GraphBuilder.append` does, and remember it for the backward pass."""
        op = super().append(name, operands, attrs)
        self._nodes.append(op)
        return op

    def with_gradient(
        self, make: Callable[..., tuple[Value, ...]], inputs: Sequence[Value], backward: Backward
    ) -> tuple[Value, ...]:
        """make(*inputs), with a derivative of its own: `backward`. The first result alone is differentiated."""
        return self._region(make, inputs, backward)

    def recomputed(self, make: Callable[..., Value], *inputs: Value) -> Value:
        """make(*inputs), of which nothing is kept: the backward pass computes it once more from the inputs
        (activation checkpointing, Chen et al. 2016, arXiv:1604.06174). What it reads of the graph's own inputs is
        behind barriers then as well, as PyTorch has it, so that no loop that reads one computes it both times."""
        results = self._region(lambda *given: (make(*given),), inputs, None)
        region = self._nodes[-1]
        assert isinstance(region, GradientRegion)
        read = dict.fromkeys(value for value in _read(region.nodes) if value.op is None)
        region.inputs = tuple(dict.fromkeys((*inputs, *read)))
        return results[0]

    def _region(
        self, make: Callable[..., tuple[Value, ...]], inputs: Sequence[Value], backward: Backward | None
    ) -> tuple[Value, ...]:
        outer, self._nodes = self._nodes, []
        try:
            results = make(*inputs)
            outer.append(GradientRegion(self._nodes, tuple(inputs), results, backward))
        finally:
            self._nodes = outer
        return results

    def gradients(
        self,
        of: Mapping[Value, Value],
        wanted: Iterable[Value],
        in_float32: Collection[Value] = (),
    ) -> dict[Value, Value]:
        """Gradients of the wanted values that are reached, appended to the graph.

        of: what arrives at the results of the forward pass. in_float32: values whose gradients are left in float32,
        as products add them up, and not rounded to the value's format. Raises GraphError (TRN309) at an op that has
        no derivative.
        """
        nodes, wanted = self._nodes, tuple(wanted)
        try:
            return _Pass(self, set(wanted), frozenset(in_float32)).run(nodes, of)
        finally:
            self._nodes = nodes


def _read(nodes: Iterable[Node]) -> Iterator[Value]:
    """What ops read, those within regions as well."""
    for node in nodes:
        yield from node.operands if isinstance(node, Op) else (*node.inputs, *_read(node.nodes))


@dataclass
class _Sum:
    """The parts of a gradient: of the whole value, and of runs [start, limit) of one of its dimensions."""

    whole: Value | None = None
    runs: list[tuple[int, int, int, Value]] = field(default_factory=list)


class _Pass:
    """One backward pass. active: values that the wanted ones have an influence on."""

    def __init__(self, b: GradientBuilder, wanted: set[Value], in_float32: frozenset[Value]) -> None:
        self.b, self.wanted, self.in_float32 = b, wanted, in_float32
        self.active = set(wanted)
        self._sums: dict[Value, _Sum] = {}
        self._again: dict[Value, Value] = {}
        self._first: dict[Value, Value] = {}  # of what was made again, what it was made as at first

    def run(self, nodes: Sequence[Node], of: Mapping[Value, Value]) -> dict[Value, Value]:
        self._mark(nodes)
        for value, gradient in of.items():
            self.give(value, gradient)
        self._walk(list(nodes))
        found = ((value, self._total(value)) for value in self.wanted)
        return {value: gradient for value, gradient in found if gradient is not None}

    # -- for the rules ---------------------------------------------------------------------------------------------
    def needs(self, value: Value) -> bool:
        """Whether its gradient is asked for."""
        return self._first.get(value, value) in self.active

    def form(self, value: Value) -> DType:
        """The format of a value's gradient."""
        return float32 if self._first.get(value, value) in self.in_float32 else value.dtype

    def give(self, value: Value, gradient: Value) -> None:
        """Add to the gradient of a value."""
        value = self._first.get(value, value)
        if value not in self.active:
            return
        total = self._sums.setdefault(value, _Sum())
        gradient = self.b.convert(gradient, self.form(value))
        total.whole = gradient if total.whole is None else self.b.add(total.whole, gradient)

    def give_run(self, value: Value, dimension: int, start: int, limit: int, gradient: Value) -> None:
        """Add to the gradient of places [start, limit) of a dimension."""
        value = self._first.get(value, value)
        if value in self.active:
            run = (dimension, start, limit, self.b.convert(gradient, self.form(value)))
            total = self._sums.setdefault(value, _Sum())
            total.runs.append(run)
            if sum(limit - start for _, start, limit, _ in total.runs) == value.shape[dimension]:
                self._total(value)  # all of it is there, as far as can be told: not later than it need be

    def saved(self, value: Value) -> Value:
        """A value of the forward pass for a derivative to read. What ranks had gathered is gathered again and not
        kept (Korthikanti et al. 2022), and what was expanded from an input of the graph is expanded again."""
        if value not in self._again:
            for first, again in self._once_more(value):
                self._again[first] = self._again[again] = again
                if again is not first:
                    self._first[again] = first
        return self._again[value]

    def _once_more(self, value: Value) -> Iterable[tuple[Value, Value]]:
        """What is made again, and as what: all that came with a value."""
        op = value.op
        if value in self.b.kept:
            return [(value, value)]
        if op is not None and op.name == "all_gather":
            return zip(op.results, self.b.append("all_gather", [*map(self._parts, op.operands)], op.attrs).results)
        chain, source = self._expanded(value)
        again = source
        if source.op is None and source.type.nbytes < value.type.nbytes:
            again = self.b.optimization_barrier(source)
        elif source.op is not None and chain:
            again = self.saved(source)
        return [(value, value if again is source else self._expand(again, chain))]

    def _parts(self, value: Value) -> Value:
        """This rank's part of what is gathered again, rounded again where it was."""
        chain, source = self._expanded(value)
        if source.op is not None:
            return self.b.optimization_barrier(value)
        return self._expand(self.b.optimization_barrier(source), chain)

    def _expanded(self, value: Value) -> tuple[list[Op], Value]:
        """The ops that made a value of another one by repeating or rounding its elements."""
        chain = []
        while value.op is not None and value.op.name in _EXPANDING and value not in self.b.kept:
            chain.append(value.op)
            value = value.op.operands[0]
        return chain[::-1], value

    def _expand(self, again: Value, chain: Sequence[Op]) -> Value:
        for op in chain:
            again = self.b.append(op.name, [again], op.attrs).result
        return again

    # -- the walk --------------------------------------------------------------------------------------------------
    def _mark(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, GradientRegion) and node.backward is None:
                self._mark(node.nodes)
                continue
            reads = node.inputs if isinstance(node, GradientRegion) else node.operands
            if any(map(self.needs, reads)):
                self.active.update(value for value in node.results if value.dtype.is_float)

    def _walk(self, nodes: list[Node]) -> None:
        for node in reversed(nodes):
            if isinstance(node, Op):
                self._through(node)
            elif node.backward is None:
                self._compute_again(node)
            else:
                self._by_itself(node, node.backward)

    def _through(self, op: Op) -> None:
        if self.active.isdisjoint(op.results):
            return
        arriving = [self._total(value) for value in op.results]
        if all(gradient is None for gradient in arriving):
            return
        if op.name not in RULES:
            raise no_derivative(op, op.name)
        with self.b.at(op.loc, op.origin):
            for value, gradient in zip(op.operands, RULES[op.name](self, op, *arriving)):
                if gradient is not None:
                    self.give(value, gradient)

    def _by_itself(self, region: GradientRegion, backward: Backward) -> None:
        gradient = self._total(region.results[0])
        if gradient is None:
            return
        for value, part in zip(region.inputs, backward(gradient, region.inputs, region.results)):
            if part is not None:
                self.give(value, part)

    def _compute_again(self, region: GradientRegion) -> None:
        gradient = self._total(region.results[0])
        if gradient is None:
            return
        new = {value: self._entering(value) for value in region.inputs}
        barriers = [(value, again) for value, again in new.items() if again not in self._first]
        self.active.update(again for value, again in barriers if value in self.active)
        self.in_float32 |= {again for value, again in barriers if value in self.in_float32}
        nodes = self._copied(region.nodes, new)
        self._mark(nodes)
        self.give(new[region.results[0]], gradient)
        self._walk(nodes)
        for value, again in barriers:
            part = self._total(again)
            if part is not None:
                self.give(value, part)

    def _entering(self, value: Value) -> Value:
        again = self.saved(value)
        return self.b.optimization_barrier(value) if again is value else again

    def _copied(self, nodes: Sequence[Node], new: dict[Value, Value]) -> list[Node]:
        """The same ops appended once more, reading `new` values in the place of those that have one there, and what
        is made again in the place of what was made outside."""
        made: list[Node] = []
        for node in nodes:
            if isinstance(node, Op):
                with self.b.at(node.loc, node.origin):
                    again = self.b.append(node.name, [self._new(v, new) for v in node.operands], node.attrs)
                new.update(zip(node.results, again.results))
                made.append(again)
            else:
                inner = self._copied(node.nodes, new)
                inputs, results = (tuple(self._new(v, new) for v in part) for part in (node.inputs, node.results))
                made.append(replace(node, nodes=inner, inputs=inputs, results=results))
        return made

    def _new(self, value: Value, new: Mapping[Value, Value]) -> Value:
        return new[value] if value in new else self.saved(value)

    def _total(self, value: Value) -> Value | None:
        """The whole gradient of a value, once all parts are there."""
        total = self._sums.get(value)
        if total is None:
            return None
        runs, total.runs = total.runs, []
        for part in self._of_runs(value, runs):
            total.whole = part if total.whole is None else self.b.add(total.whole, part)
        return total.whole

    def _of_runs(self, value: Value, runs: list[tuple[int, int, int, Value]]) -> list[Value]:
        """Runs of one dimension that do not meet lie one behind the other, with zeros between them; others each among
        zeros of their own."""
        ordered = sorted(runs, key=lambda run: run[:3])
        apart = all(one[2] <= two[1] for one, two in pairwise(ordered))
        if len(ordered) < 2 or not apart or len({dimension for dimension, *_ in ordered}) > 1:
            return [self._among_zeros(value, *run) for run in ordered]
        dimension, end, parts = ordered[0][0], 0, list[Value]()
        for _, start, limit, part in (*ordered, (0, value.shape[dimension], 0, None)):
            if start > end:
                gap = (*value.shape[:dimension], start - end, *value.shape[dimension + 1 :])
                parts.append(self.b.constant(0.0, self.form(value), gap))
            parts += [part] if part is not None else []
            end = limit
        return [self.b.concatenate(parts, dimension)]

    def _among_zeros(self, value: Value, dimension: int, start: int, limit: int, part: Value) -> Value:
        low, high = ([0] * len(value.shape) for _ in range(2))
        low[dimension], high[dimension] = start, value.shape[dimension] - limit
        return self.b.pad(part, low, high)
