# SPDX-License-Identifier: Apache-2.0
"""Weights that stay as they are, brought once into the form that each run reads.

Of a graph for inference some inputs are the same in each run. What hangs on these alone is a graph of its own, which
runs when weights are loaded: casts to the format of products, transposes, and each matrix with its contraction in
rows, as the PE array takes it. Otherwise each run would cast every weight and turn it on the PE array (ADR 138). The
vendor's compiler has a traced model's weights before it, too: `torch_neuronx.trace` puts them into the program
(`inline_weights_to_neff`, whose default is True: api-torch-neuronx-trace.rst of aws-neuron/aws-neuron-sdk).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trnlab.compiler.convolutions import is_weight_gradient
from trnlab.compiler.passes import FORMS, run_passes
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import COLLECTIVE, ELEMENTWISE, OPS, SHAPE
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import made_by, rewrite
from trnlab.stacks import RECORDED

VECTOR = 1 << 16  # bytes
BIAS = 4 << 20  # bytes of a bias of attention: it comes from memory sooner than by lookups in its table
REPEATED = frozenset({"custom_call", "loop"})  # what is done in each run, whatever it reads


@dataclass(frozen=True)
class PreparedGraph:
    """A graph in two. Outputs of `each` are the original's."""

    once: Graph  # of the inputs numbered `frozen` of the original
    each: Graph  # of those numbered `given`, and behind them of all that `once` returns
    frozen: tuple[int, ...]
    given: tuple[int, ...]


def prepare(graph: Graph, frozen: Iterable[int], options: Mapping[str, Any]) -> PreparedGraph | None:
    """`graph` in two, where something hangs on nothing but the inputs numbered `frozen`, which are the same in each
    run; None where nothing does. options: as of `compile`."""
    kept = sorted(set(frozen) - set(graph.aliases.values()))
    if not kept or graph.num_probes or graph.start is not None:
        return None
    work = graph.copy()
    run_passes(work, options, FORMS)
    weights = {work.inputs[i] for i in kept}
    made, looks, users = _made_of(work, weights), set[Value](), work.users()
    rewrite(
        work,
        {
            "dot_general": lambda op, b: _contraction_in_rows(op, b, made),
            "convert": lambda op, b: _cast_before_repeated(op, b, made, users),
            "convolution": lambda op, b: _channels_in_rows(op, b, made, looks),
        },
    )
    recorded = options.get("order") == RECORDED
    made = _made_of(work, weights, set() if recorded else _known(work))
    biases = set[Value]() if recorded else _biases(work)
    wanted = _wanted(work, {v: w for v, w in made.items() if v not in looks}, biases)
    return _divided(work, kept, wanted) if wanted else None


def _known(graph: Graph) -> set[Value]:
    """What hangs on no input: constants, places, and what is made of these."""
    found = set[Value]()
    for op in graph.ops:
        plain = op.name in ("constant", "iota") or (op.operands and OPS[op.name].kind in (ELEMENTWISE, SHAPE))
        if plain and len(op.results) == 1 and found.issuperset(op.operands):
            found.add(op.result)
    return found


def _made_of(graph: Graph, weights: set[Value], known: Container[Value] = ()) -> dict[Value, set[Value]]:
    """The weights, and what hangs on nothing else but what is `known`, each with the weights that it hangs on."""
    made = {v: {v} for v in weights}
    for op in graph.ops:
        again = OPS[op.name].kind == COLLECTIVE or op.name in REPEATED or len(op.results) > 1
        own = [made[v] for v in op.operands if v in made]
        if own and not again and all(v in made or v in known or _is_constant(v) for v in op.operands):
            made[op.result] = set().union(*own)
    return made


def _is_constant(value: Value) -> bool:
    return value.op is not None and value.op.name == "constant"


def _biases(graph: Graph) -> set[Value]:
    """What is added to scores of attention, as its kernels take it."""
    read = (v for op in graph.ops if op.name == "trn.attention" for v in op.operands[3:])
    return {v for v in read if v.type.nbytes <= BIAS}


def _wanted(graph: Graph, made: dict[Value, set[Value]], biases: Container[Value]) -> list[Value]:
    """What each run reads of what is made of weights. What takes more memory than they, as weights of a byte do that
    are widened, or a bias that is repeated for each row, is made in each run, of what is smaller; but `biases`."""
    small = {v for v, weights in made.items() if v in biases or _is_small(v, weights)}
    read, wanted = set(graph.outputs), dict[Value, None]()
    for op in reversed(graph.ops):
        if read.isdisjoint(op.results) and op.result in made:
            continue
        if op.result in small:
            wanted[op.result] = None
        else:
            read.update(op.operands)
    return list(reversed(wanted))


def _contraction_in_rows(op: Op, b: GraphBuilder, made: Container[Value]) -> Value | None:
    """A product whose weights have their contraction before their columns."""
    attrs, operands = dict(op.attrs), list(op.operands)
    for i, side in enumerate(("lhs", "rhs")):
        batch, rows = (attrs[f"{side}_{kind}_dimensions"] for kind in ("batching", "contracting"))
        columns = [d for d in range(len(operands[i].shape)) if d not in (*batch, *rows)]
        order = (*batch, *rows, *columns)
        if operands[i] in made and order != tuple(range(len(order))):
            operands[i] = b.transpose(operands[i], order)
            attrs[f"{side}_batching_dimensions"] = tuple(range(len(batch)))
            attrs[f"{side}_contracting_dimensions"] = tuple(range(len(batch), len(batch) + len(rows)))
    return None if operands == list(op.operands) else b.op("dot_general", *operands, **attrs)


def _is_small(value: Value, weights: Iterable[Value]) -> bool:
    """Whether a value takes no more memory than what it is made of; a vector in a wider format may."""
    size, nbytes = (sum(getattr(w.type, name) for w in weights) for name in ("size", "nbytes"))
    return value.type.nbytes <= nbytes or (value.type.size <= size and value.type.nbytes <= VECTOR)


def _is_product(value: Value) -> bool:
    """Whether it is the result of a product, perhaps in another shape or format."""
    while value.op is not None and value.op.name in ("reshape", "transpose", "convert"):
        value = value.op.operands[0]
    return value.op is not None and value.op.name in ("dot_general", "convolution")


def _channels_in_rows(op: Op, b: GraphBuilder, made: Container[Value], looks: set[Value]) -> Value | None:
    """A convolution whose weights have their input channels before their output channels in memory; what it is given
    is a look at these, of the shape that it takes."""
    x, weight = op.operands
    if weight not in made or op.attrs["feature_group_count"] > 1 or is_weight_gradient(op):
        return None
    swap = (1, 0, *range(2, len(weight.shape)))
    seen = b.transpose(b.transpose(weight, swap), swap)
    looks.add(seen)
    return b.op("convolution", x, seen, **op.attrs)


def _cast_before_repeated(
    op: Op, b: GraphBuilder, made: Container[Value], users: Mapping[Value, list[Op]]
) -> Value | None:
    """A product's bias in the format that is asked for, and then repeated for each row, not the other way round.

    Others stay: a norm of groups reads a copy for each element, which comes quicker from memory than by itself."""
    repeated = made_by(op.operands[0], "broadcast_in_dim")
    readers = users.get(op.result, [])
    if repeated is None or repeated.operands[0] not in made:
        return None
    if not all(any(map(_is_product, reader.operands)) for reader in readers):
        return None
    cast = b.convert(repeated.operands[0], op.result.dtype)
    return b.op("broadcast_in_dim", cast, **repeated.attrs)


def _divided(work: Graph, kept: Sequence[int], wanted: Sequence[Value]) -> PreparedGraph:
    names = [f"prepared_{i}" for i in range(len(wanted))]
    once = Graph(f"{work.name}_weights", [work.inputs[i] for i in kept], work.ops, list(wanted), names)
    instead = {v: Value(v.type, name=name) for v, name in zip(wanted, names)}
    each = Graph(
        work.name,
        [*work.inputs, *instead.values()],
        [replace(op, operands=tuple(instead.get(v, v) for v in op.operands)) for op in work.ops],
        [instead.get(v, v) for v in work.outputs],
        work.output_names,
        work.aliases,
        work.checks,
    )
    first, frozen = _as_read(once, len(kept))
    second, given = _as_read(each, len(work.inputs))
    second.aliases = {out: given.index(source) for out, source in work.aliases.items()}
    second.bounds = {given.index(i): bound for i, bound in work.bounds.items() if i in given}
    return PreparedGraph(first, second, tuple(kept[i] for i in frozen), given)


def _as_read(graph: Graph, count: int) -> tuple[Graph, tuple[int, ...]]:
    """The graph without what nobody reads, and which of its first `count` inputs it still has."""
    remove_dead_ops(graph)
    read = {v for op in graph.ops for v in op.operands} | set(graph.outputs)
    places = set(graph.aliases.values())
    left = [i for i, v in enumerate(graph.inputs) if v in read or i in places or i >= count]
    graph.inputs = [graph.inputs[i] for i in left]
    graph = graph.copy()
    for i, value in enumerate(graph.inputs):
        value.index = i
    return graph, tuple(i for i in left if i < count)
