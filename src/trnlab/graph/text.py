# SPDX-License-Identifier: Apache-2.0
"""Graphs as text, for people, tests and bug reports; `parse` reads it back.

    graph @scale(%x: tensor<8x128xfloat32>, %w: tensor<128xfloat32>) {
      %0 = constant 2.0 : tensor<8x128xfloat32>
      %1 = multiply %x, %0 : tensor<8x128xfloat32>
      %2 = broadcast_in_dim %w {broadcast_dimensions = [1]} : tensor<8x128xfloat32>
      %y = add %1, %2 : tensor<8x128xfloat32>
      return %y as "y" into %x
    }

Attributes that have their default, and the shapes and dtypes that the result type tells, are left out. The code of a
custom_call is named and not written, and the rounds of a loop are graphs that follow; a graph with one of the two
cannot be read back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from trnlab.graph.ir import Graph, Op, Value
from trnlab.graph.ops import OPS
from trnlab.numerics.dtypes import DType

MAX_LISTED = 64  # elements of a constant that are written as a list; more are written as bytes
FROM_RESULT = ("shape", "dtype")  # attributes that the result type tells
_WIDTH = 110
_NAME = re.compile(r"[A-Za-z_][\w.]*")


def to_text(graph: Graph, *, locations: bool = False, whole: bool = True) -> str:
    """The graph as text. `locations`: with source lines. `whole`: with all bytes of large constants, as `parse`
    needs."""
    names = ValueNames(graph)
    lines = [_signature(graph, names)]
    lines += [f"  {op_text(op, names, locations=locations, whole=whole)}" for op in graph.ops]
    lines += [_returns(graph, names), "}", ""]
    bodies = {op.attrs["body"].digest: op.attrs["body"] for op in graph.ops if op.name == "loop"}
    rounds = [to_text(body.graph, locations=locations, whole=whole) for body in bodies.values()]
    return "\n".join([*lines, *rounds])


def excerpt(graph: Graph, op: Op, context: int = 2) -> str:
    """The lines around an op, with an arrow at it."""
    names, at = ValueNames(graph), graph.ops.index(op)
    lines = []
    for i in range(max(at - context, 0), min(at + context + 1, len(graph.ops))):
        mark = "->" if i == at else "  "
        lines.append(f"    {mark} {op_text(graph.ops[i], names, whole=False)}")
    return "\n".join(lines)


class ValueNames:
    """A unique printed name for each value of a graph: its hint where that can be one, else a number."""

    def __init__(self, graph: Graph) -> None:
        self._names: dict[Value, str] = {}
        taken: set[str] = set()
        numbered = 0
        for value in graph.values():
            name = value.name
            if name in taken or not _NAME.fullmatch(name):
                name, numbered = str(numbered), numbered + 1
            taken.add(name)
            self._names[value] = f"%{name}"

    def __getitem__(self, value: Value) -> str:
        return self._names.get(value, "%unknown")

    def join(self, values: Iterable[Value]) -> str:
        """The names, comma-separated."""
        return ", ".join(self[v] for v in values)


def op_text(op: Op, names: ValueNames, *, locations: bool = False, whole: bool = True) -> str:
    """One op as one line."""
    parts = [names.join(op.results), "=", op.name]
    if op.name == "constant":
        parts.append(_constant(op, whole))
    if op.operands:
        parts.append(names.join(op.operands))
    attrs = _attrs(op)
    if attrs:
        parts.append("{" + attrs + "}")
    parts += [":", ", ".join(str(v.type) for v in op.results)]
    if locations and (op.loc or op.origin):
        parts.append(_location(op))
    return " ".join(parts)


def _signature(graph: Graph, names: ValueNames) -> str:
    inputs = [f"{names[v]}: {v.type}" for v in graph.inputs]
    start = f"graph @{json.dumps(graph.name)[1:-1] if _NAME.fullmatch(graph.name) else json.dumps(graph.name)}"
    line = f"{start}({', '.join(inputs)}) {{"
    return line if len(line) <= _WIDTH else f"{start}(\n    " + ",\n    ".join(inputs) + "\n) {"


def _returns(graph: Graph, names: ValueNames) -> str:
    parts = []
    for i, (value, name) in enumerate(zip(graph.outputs, graph.output_names)):
        into = f" into {names[graph.inputs[graph.aliases[i]]]}" if i in graph.aliases else ""
        parts.append(f"{names[value]} as {json.dumps(name)}{into}")
    line = f"  return {', '.join(parts)}".rstrip()
    return line if len(line) <= _WIDTH else "  return\n    " + ",\n    ".join(parts)


def _attrs(op: Op) -> str:
    """Attributes in the order of the op's table entry, then any that do not belong there."""
    known = OPS[op.name].attrs if op.name in OPS else {}
    shown = []
    for key in dict.fromkeys((*known, *op.attrs)):
        if key not in op.attrs or key in FROM_RESULT or (op.name == "constant" and key == "value"):
            continue
        value, default = op.attrs[key], known[key].default if key in known else None
        if type(default) is not type(value) or default != value:
            shown.append(f"{key} = {_attr(value)}")
    return ", ".join(shown)


def _attr(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if hasattr(value, "digest"):
        return f"@{value.name} {value.digest[:12]}"
    return value.name if isinstance(value, DType) else str(value)


def _constant(op: Op, whole: bool) -> str:
    value, dtype = op.attrs["value"], op.result.dtype
    if not isinstance(value, np.ndarray):
        return number_text(value, dtype)
    if value.size <= MAX_LISTED:
        return _nested(value, dtype)
    return "0x" + value.tobytes().hex() if whole else f"<{value.size} elements>"


def _nested(array: np.ndarray[Any, Any], dtype: DType) -> str:
    if array.ndim == 0:
        return number_text(array.item(), dtype)
    return "[" + ", ".join(_nested(part, dtype) for part in array) + "]"


def number_text(value: Any, dtype: DType) -> str:
    """The shortest decimal that reads back as the same number of this format."""
    if dtype.kind == "b":
        return str(bool(value)).lower()
    return str(np.float32(value)) if dtype.is_float else str(int(value))


def _location(op: Op) -> str:
    if op.loc is None:
        return f"loc({json.dumps(op.origin)})"
    parts = [f"{json.dumps(op.loc.file)}:{op.loc.line}", *map(json.dumps, (op.loc.function, op.loc.text, op.origin))]
    while parts[-1] == '""':
        parts.pop()
    return f"loc({' '.join(parts)})"
