# SPDX-License-Identifier: Apache-2.0
"""Loops: a round is compiled once, and its calls are made again with other parts of the tensors.

First, on the graph: what does not change from round to round is computed once, before the loop; results that nobody
reads are not computed. Then, on the program: the calls of one round become those of all. What goes round lies in two
tensors in turn, of which one is the result, so that no round copies it; what a round reads or writes of a sequence is
a run of bytes of it. Temporaries of a round are those of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.loops import Body, LoopInput
from trnlab.graph.ops import CALL, COLLECTIVE, OPS
from trnlab.graph.passes import simplify
from trnlab.graph.passes.rewrite import rewrite
from trnlab.program import Call, ProgramTensor

Pass = Callable[[Graph], object]


# -- on the graph ---------------------------------------------------------------------------------------------------


def prepare_loops(graph: Graph, passes: Pass) -> None:
    """Bring each loop's round into the forms of `passes`, and compute outside of it what all rounds share."""
    _drop_unread(graph)

    def prepared(op: Op, b: GraphBuilder) -> tuple[Value, ...]:
        body: Body = op.attrs["body"]
        body = replace(body, graph=body.graph.copy(), _memo={})
        passes(body.graph)
        operands = list(op.operands)
        body = _hoisted(body, operands, b)
        return b.append("loop", operands, {**op.attrs, "body": _trimmed(body)}).results

    rewrite(graph, {"loop": prepared})


def _drop_unread(graph: Graph) -> None:
    """Leave out results that nobody reads, beginning with the last loops, whose operands are results of others."""
    read = set(graph.outputs)
    for op in reversed(graph.ops):
        if op.name == "loop":
            _keep_results(op, read)
        read.update(op.operands)


def _keep_results(op: Op, read: set[Value]) -> None:
    """Leave out the results of a loop that are not in `read`, unless they go round for others."""
    body: Body = op.attrs["body"]
    kept = {i for i, v in enumerate(op.results) if v in read}
    while True:
        needed = _needed(body, kept)
        carried = {r.carry for r, v in zip(body.reads, body.graph.inputs) if r.carry is not None and v in needed}
        if carried <= kept:
            break
        kept |= {i for i in carried if i is not None}
    if len(kept) == len(op.results) or not kept:
        return
    order = sorted(kept)
    graph = replace(
        body.graph,
        outputs=[body.graph.outputs[i] for i in order],
        aliases={},
        output_names=[body.graph.output_names[i] for i in order],
    )
    reads = tuple(replace(r, carry=order.index(r.carry) if r.carry in kept else None) for r in body.reads)
    body = Body(graph, body.rounds, reads, tuple(body.writes[i] for i in order))
    op.attrs = {**op.attrs, "body": _trimmed(body)}
    op.results = tuple(op.results[i] for i in order)
    for i, value in enumerate(op.results):
        value.index = i


def _needed(body: Body, outputs: set[int]) -> set[Value]:
    """The values of a round that these outputs are computed from."""
    needed = {body.graph.outputs[i] for i in outputs}
    for op in reversed(body.graph.ops):
        if any(v in needed for v in op.results):
            needed.update(op.operands)
    return needed


def _trimmed(body: Body) -> Body:
    """The body without ops and inputs that no output needs."""
    graph = body.graph.copy()
    simplify(graph)
    read = {v for op in graph.ops for v in op.operands} | {*graph.outputs}
    kept = [i for i, v in enumerate(graph.inputs) if v in read]
    graph.inputs = [graph.inputs[i] for i in kept]
    for i, value in enumerate(graph.inputs):
        value.index = i
    return Body(graph, body.rounds, tuple(body.reads[i] for i in kept), body.writes)


def _hoisted(body: Body, operands: list[Value], b: GraphBuilder) -> Body:
    """The body without ops whose operands are the same in all rounds: they are written with `b`, before the loop.

    `operands` are the loop's, and get what the rounds then read.
    """
    graph = body.graph
    same = {v: operands[r.operand] for v, r in zip(graph.inputs, body.reads) if r.window is None and r.carry is None}
    kept, reads = [], list(body.reads)
    for op in graph.ops:
        fixed = (
            bool(op.operands)
            and OPS[op.name].kind not in (CALL, COLLECTIVE)
            and all(_is_same(v, same) for v in op.operands)
        )
        if not fixed or not any(v in same for v in op.operands):
            kept.append(op)
            continue
        with b.at(op.loc, op.origin):
            found = b.append(op.name, [_outside(v, same, b) for v in op.operands], op.attrs).results
        same.update(zip(op.results, found))
    graph.ops = kept
    made = {v for v in same if v not in graph.inputs}
    for value in dict.fromkeys(v for v in (*(v for op in kept for v in op.operands), *graph.outputs) if v in made):
        entry = Value(value.type, None, len(graph.inputs), value.name)
        graph.inputs.append(entry)
        graph.replace({value: entry})
        reads.append(LoopInput(len(operands)))
        operands.append(same[value])
    return replace(body, reads=tuple(reads), _memo={})


def _is_same(value: Value, same: Mapping[Value, Value]) -> bool:
    return value in same or (value.op is not None and value.op.name in ("constant", "iota"))


def _outside(value: Value, same: dict[Value, Value], b: GraphBuilder) -> Value:
    if value not in same:
        assert value.op is not None
        same[value] = b.append(value.op.name, (), value.op.attrs).result
    return same[value]


# -- on the program -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of a tensor of the program."""

    tensor: int
    offset: int = 0


@dataclass
class Round:
    """The calls of one round, over tensors of its own. tensor_of: of the values of its graph."""

    calls: Sequence[Call]
    tensors: Sequence[ProgramTensor]
    tensor_of: Mapping[Value, int]


def calls_of(
    body: Body,
    round_: Round,
    operands: Sequence[ByteRange],
    results: Sequence[ByteRange],
    own: Callable[[int], int],
    spare: Callable[[int], int],
) -> Iterator[Call]:
    """The calls of all rounds.

    operands, results: where those of the loop lie. own: the program's tensor for a tensor that all rounds share (a
    temporary, or a constant); spare: one for an output that goes round while its result holds another round's.
    """
    spares = {i: ByteRange(spare(i)) for i, w in enumerate(body.writes) if w.window is None and body.rounds > 1}
    shared = _shared(body, round_, operands, own)

    def output(index: int, number: int) -> ByteRange:
        window, value = body.writes[index].window, body.graph.outputs[index]
        if window is not None:
            return _moved(results[index], window.first(number) * value.dtype.itemsize)
        return results[index] if (body.rounds - 1 - number) % 2 == 0 else spares[index]

    for number in range(body.rounds):
        places = dict(shared)
        for value, read in zip(body.graph.inputs, body.reads):
            if read.carry is not None and number:
                places[round_.tensor_of[value]] = output(read.carry, number - 1)
            elif read.window is not None:
                first = read.window.first(number) * value.dtype.itemsize
                places[round_.tensor_of[value]] = _moved(operands[read.operand], first)
            else:
                places[round_.tensor_of[value]] = operands[read.operand]
        for index, value in enumerate(body.graph.outputs):
            places[round_.tensor_of[value]] = output(index, number)
        for call in round_.calls:
            yield _bound(call, places)


def _shared(
    body: Body, round_: Round, operands: Sequence[ByteRange], own: Callable[[int], int]
) -> dict[int, ByteRange]:
    """Where the tensors lie that all rounds use."""
    moving = {round_.tensor_of[v] for v in (*body.graph.inputs, *body.graph.outputs)}
    return {t.id: ByteRange(own(t.id)) for t in round_.tensors if t.id not in moving}


def _moved(place: ByteRange, offset: int) -> ByteRange:
    return ByteRange(place.tensor, place.offset + offset)


def _bound(call: Call, places: Mapping[int, ByteRange]) -> Call:
    """A call with the program's tensors in place of the round's."""
    found = [_moved(places[arg], begin) for arg, begin in zip(call.args, call.offsets or (0,) * len(call.args))]
    return replace(call, args=tuple(p.tensor for p in found), offsets=tuple(p.offset for p in found))
