# SPDX-License-Identifier: Apache-2.0
"""The rules that every graph obeys, as a table. An error shows the op that breaks one, between its neighbours.

Codes beyond those of `infer`: TRN305, the graph does not hang together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from trnlab.errors import GraphError
from trnlab.graph.infer import infer
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.text import excerpt


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """One broken rule; `op` is where, None for the graph as a whole."""

    op: Op | None
    what: str
    limit: object = None
    got: object = None
    code: str = "TRN305"


def verify(graph: Graph) -> None:
    """Raise GraphError for the first rule that the graph breaks."""
    for rule in RULES:
        for problem in rule(graph):
            op = problem.op
            around = f"\n{excerpt(graph, op)}" if op is not None else ""
            raise GraphError(
                f"graph {graph.name!r}: {problem.what}{around}",
                code=problem.code,
                where=op.loc if op is not None else None,
                limit=problem.limit,
                got=problem.got,
            )


def inputs_are_inputs(graph: Graph) -> Iterator[BrokenRule]:
    """Inputs are distinct, numbered by place, and made by no op."""
    for i, value in enumerate(graph.inputs):
        if value.op is not None or value.index != i:
            yield BrokenRule(None, f"input {i} is not the graph's own {i}th input", got=value)
    if len(set(graph.inputs)) != len(graph.inputs):
        yield BrokenRule(None, "an input is listed twice")


def results_know_their_op(graph: Graph) -> Iterator[BrokenRule]:
    """Each result points back to its op and place; with that, each value is made once."""
    for op in graph.ops:
        for i, value in enumerate(op.results):
            if value.op is not op or value.index != i:
                yield BrokenRule(op, f"result {i} of {op.name} belongs to another op", got=value)


def values_are_made_before_read(graph: Graph) -> Iterator[BrokenRule]:
    """Ops stand in topological order; outputs exist; no op is listed twice."""
    known: set[Value] = set(graph.inputs)
    for op in graph.ops:
        for operand in op.operands:
            if operand not in known:
                yield BrokenRule(op, f"{op.name} reads a value that is not made before it", got=operand)
        if any(v in known for v in op.results):
            yield BrokenRule(op, f"{op.name} is listed twice")
        known.update(op.results)
    for i, value in enumerate(graph.outputs):
        if value not in known:
            yield BrokenRule(None, f"output {i} is not a value of the graph", got=value)


def types_follow(graph: Graph) -> Iterator[BrokenRule]:
    """Operands, attributes and result types obey the op's typing rules."""
    for op in graph.ops:
        try:
            types = infer(op.name, [v.type for v in op.operands], op.attrs)
        except GraphError as error:
            yield BrokenRule(op, error.what, error.limit, error.got, error.code)
            continue
        found = tuple(v.type for v in op.results)
        if types != found:
            yield BrokenRule(
                op, f"{op.name}: wrong result types", ", ".join(map(str, types)), ", ".join(map(str, found))
            )


def outputs_are_named(graph: Graph) -> Iterator[BrokenRule]:
    """One name per output."""
    if len(graph.output_names) != len(graph.outputs):
        yield BrokenRule(None, "outputs and output names differ in number", len(graph.outputs), graph.output_names)


def aliases_fit(graph: Graph) -> Iterator[BrokenRule]:
    """An output overwrites an input of its own type, and each input is overwritten at most once."""
    for out, into in graph.aliases.items():
        if not (0 <= out < len(graph.outputs) and 0 <= into < len(graph.inputs)):
            yield BrokenRule(None, f"alias {out} -> {into} names no output or no input")
        elif graph.outputs[out].type != graph.inputs[into].type:
            name, wanted = graph.output_names[out], graph.inputs[into].type
            yield BrokenRule(None, f"output {name!r} cannot overwrite input {into}", wanted, graph.outputs[out].type)
    if len(set(graph.aliases.values())) != len(graph.aliases):
        yield BrokenRule(None, "an input is overwritten by two outputs", got=graph.aliases)


def draws_are_apart(graph: Graph) -> Iterator[BrokenRule]:
    """Two draws from one seed have no number in common, unless they are the same draw."""
    ranges: dict[Value, list[tuple[int, int]]] = {}
    for op in graph.ops:
        if op.name == "trn.rng_uniform":
            first = op.attrs["first"]
            ranges.setdefault(op.operands[0], []).append((first, first + op.result.type.size))
    for found in ranges.values():
        ordered = sorted(set(found))
        for before, after in pairwise(ordered):
            if after[0] < before[1]:
                yield BrokenRule(
                    None, "two draws share random numbers", f"from number {before[1]} on", f"from {after[0]}"
                )


RULES: tuple[Callable[[Graph], Iterator[BrokenRule]], ...] = (
    inputs_are_inputs,
    results_know_their_op,
    values_are_made_before_read,
    types_follow,
    outputs_are_named,
    aliases_fit,
    draws_are_apart,
)
