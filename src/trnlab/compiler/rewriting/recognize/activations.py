# SPDX-License-Identifier: Apache-2.0
"""GELU, by the error function or by tanh, with its derivative, and SiLU become the ops that ScalarE has tables
for.

Around each tanh, erf and logistic, values are read as polynomials (`polynomials`). Those that are the activation, or
its derivative times something, are replaced; if the function is then still read, all stays as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trnlab.compiler.rewriting.recognize.polynomials import (
    FORMATS,
    Polynomial,
    PolynomialReader,
    Powers,
    close,
    ratio,
    sources,
)
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import ELEMENTWISE, OPS
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.graph.passes.rewrite import made_by, rewrite, splat
from trnlab.numerics.dtypes import bfloat16, float32

_C, _A = math.sqrt(2 / math.pi), 0.044715
_MOST_VALUES = 60
_TOLERANCE = {float32: 1e-5, bfloat16: 2.0**-7}  # of coefficients, written in the format of the function's values


@dataclass(frozen=True)
class ActivationMatch:
    """An activation in the terms by which it is recognised."""

    inside: Mapping[Powers, float]  # the argument of the function f, in x
    # itself, slope: the activation and its derivative
    itself: Mapping[Powers, float]
    slope: Mapping[Powers, float]
    # write, write_slope: as ops
    write: Callable[[GraphBuilder, Value], Value]
    write_slope: Callable[[GraphBuilder, Value], Value] | None
    exponent: Mapping[Powers, float] | None = None  # the argument of an exponential that is h, if there is one


_TANH = ActivationMatch(
    {Powers(1): _C, Powers(3): _C * _A},
    {Powers(1): 0.5, Powers(1, 1): 0.5},
    {
        Powers(): 0.5,
        Powers(0, 1): 0.5,
        Powers(1): 0.5 * _C,
        Powers(3): 1.5 * _C * _A,
        Powers(1, 2): -0.5 * _C,
        Powers(3, 2): -1.5 * _C * _A,
    },
    lambda b, x: b.gelu(x, "tanh"),
    lambda b, x: b.gelu_dx(x, "tanh"),
)
_ERF = ActivationMatch(
    {Powers(1): math.sqrt(0.5)},
    {Powers(1): 0.5, Powers(1, 1): 0.5},
    {Powers(): 0.5, Powers(0, 1): 0.5, Powers(1, 0, 1): 1 / math.sqrt(2 * math.pi)},
    lambda b, x: b.gelu(x),
    lambda b, x: b.gelu_dx(x),
    {Powers(2): -0.5},
)
_LOGISTIC = ActivationMatch(
    {Powers(1): 1.0},
    {Powers(1, 1): 1.0},
    {Powers(0, 1): 1.0, Powers(1, 1): 1.0, Powers(1, 2): -1.0},
    lambda b, x: b.silu(x),
    None,  # ScalarE's table has +0 where the formula has -0
)
_BY_FUNCTION = {"tanh": _TANH, "erf": _ERF, "logistic": _LOGISTIC}


def recognize_activations(graph: Graph) -> bool:
    """Replace what is an activation or its derivative; whether there was any."""
    gates = rewrite(graph, {"divide": _logistic})
    users, read = graph.users(), graph.wanted()
    place = {op: i for i, op in enumerate(graph.ops)}
    ends: dict[Op, Callable[[GraphBuilder], Value]] = {}
    for op in graph.ops:
        if op.name in _BY_FUNCTION and op.result.dtype in FORMATS and op.result.type.size > 1:
            ends.update(_find(op, users, read, place))
    if ends:
        _replace(graph, ends)
    if gates or ends:
        remove_dead_ops(graph)
    return gates or bool(ends)


def _logistic(op: Op, b: GraphBuilder) -> Value | None:
    """1 / (1 + exp(-x)), as JAX writes it; where the exponential overflows, both are zero."""
    inside = made_by(op.operands[1], "add") if splat(op.operands[0]) == 1 else None
    for one, other in () if inside is None else (inside.operands, inside.operands[::-1]):
        grown = made_by(other, "exponential")
        if grown is not None and splat(one) == 1:
            x = made_by(grown.operands[0], "negate")
            return b.logistic(x.operands[0] if x is not None else b.negate(grown.operands[0]))
    return None


def _find(
    op: Op, users: Mapping[Value, Sequence[Op]], read: set[Value], place: Mapping[Op, int]
) -> dict[Op, Callable[[GraphBuilder], Value]]:
    """The ops to replace around one function, and by what; none where not all that reads it is the activation's."""
    kind, tolerance = _BY_FUNCTION[op.name], _TOLERANCE[op.result.dtype]
    for x in sources(op.operands[0]):
        if x.dtype in FORMATS and close(PolynomialReader(x, {}).read(op.operands[0]), kind.inside, tolerance):
            found = _ends(op, kind, x, users, read, place)
            if found:
                return found
    return {}


def _ends(
    op: Op,
    kind: ActivationMatch,
    x: Value,
    users: Mapping[Value, Sequence[Op]],
    read: set[Value],
    place: Mapping[Op, int],
) -> dict[Op, Callable[[GraphBuilder], Value]]:
    functions, tolerance = {op: 0}, _TOLERANCE[op.result.dtype]
    if kind.exponent is not None:
        reader = PolynomialReader(x, {})
        functions |= {
            e: 1 for e in _exponentials(x, users) if close(reader.read(e.operands[0]), kind.exponent, tolerance)
        }
    reader = PolynomialReader(x, functions)
    ends: dict[Op, Callable[[GraphBuilder], Value]] = {}
    pending, seen = [function.result for function in functions], set[Op]()
    while pending:
        value = pending.pop()
        if value in read or len(seen) > _MOST_VALUES:
            return {}
        for user in users.get(value, ()):
            if user in seen:
                continue
            seen.add(user)
            if OPS[user.name].kind != ELEMENTWISE or user.result.dtype not in FORMATS:
                return {}
            polynomial = reader.read(user.result)
            if any(p.other is user.result for p in polynomial):
                return {}  # not arithmetic
            before = {v: f for v, f in reader.scaled.items() if f.op is None or place[f.op] < place[user]}
            written = _written(polynomial, kind, reader.x, before, tolerance)
            if written is None:
                pending.append(user.result)
            else:
                ends[user] = written
    return ends


def _exponentials(x: Value, users: Mapping[Value, Sequence[Op]]) -> list[Op]:
    """Exponentials a few elementwise ops after x."""
    level, found = [x], []
    for _ in range(5):
        ops = [op for value in level for op in users.get(value, ()) if OPS[op.name].kind == ELEMENTWISE][
            :_MOST_VALUES
        ]
        found += [op for op in ops if op.name == "exponential"]
        level = [op.result for op in ops]
    return list(dict.fromkeys(found))


def _written(
    polynomial: Polynomial,
    kind: ActivationMatch,
    x: Value,
    scaled: Mapping[tuple[Value, float], Value],
    tolerance: float,
) -> Callable[[GraphBuilder], Value] | None:
    """How to write a value that is the activation, or its derivative times another value.

    scaled: numbers times other values, as they are in the graph.
    """
    if close(polynomial, kind.itself, tolerance):
        return lambda b: kind.write(b, x)
    found, write_slope = ratio(polynomial, kind.slope, tolerance), kind.write_slope
    if found is None or write_slope is None:
        return None
    factor, other = found

    def write(b: GraphBuilder) -> Value:
        slope = write_slope(b, b.convert(x, float32))
        same = (v for (r, f), v in scaled.items() if r is other and math.isclose(f, factor, rel_tol=tolerance))
        near = next(same, None)
        if other is not None:
            slope = b.multiply(b.convert(near or other, float32), slope)
        return (
            slope if near is not None or math.isclose(factor, 1.0, rel_tol=tolerance) else b.multiply(slope, factor)
        )

    return write


def _replace(graph: Graph, ends: Mapping[Op, Callable[[GraphBuilder], Value]]) -> None:
    b, now = GraphBuilder(graph.name), dict[Value, Value]()
    for op in graph.ops:
        op.operands = tuple(now.get(v, v) for v in op.operands)
        b.graph.ops.append(op)
        if op in ends:
            b.loc, b.origin = op.loc, op.origin
            now[op.result] = b.convert(ends[op](b), op.result.dtype)
    for op in b.graph.ops:
        op.operands = tuple(now.get(v, v) for v in op.operands)
    graph.ops, graph.outputs = b.graph.ops, [now.get(v, v) for v in graph.outputs]
