# SPDX-License-Identifier: Apache-2.0
"""Graphs as StableHLO, the way out to other compilers (XLA on a CPU among them, as an independent check).

The text is MLIR's generic form, so that one rule prints every op. Composites are expanded first; `erf` and `atan` are
CHLO's.
Inputs that an output overwrites carry the attribute tf.aliasing_output, as in what JAX writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.composites import expand
from trnlab.graph.ir import Graph, Op, TensorType, Value
from trnlab.graph.loops import Body, LoopWindow
from trnlab.graph.ops import COLLECTIVE, OPS
from trnlab.graph.text import number_text
from trnlab.numerics.dtypes import DType, bool_, int32

# Groups are of numbers of devices, as with `use_global_device_ids`: of partitions, where there is one replica.
_HANDLE = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
_WITH_BODY = ("all_reduce", "reduce_scatter")
_ELEMENT = {
    "float32": "f32",
    "tfloat32": "tf32",
    "bfloat16": "bf16",
    "float16": "f16",
    "float8_e4m3": "f8E4M3",
    "float8_e5m2": "f8E5M2",
    "int32": "i32",
    "uint32": "ui32",
    "int16": "i16",
    "uint16": "ui16",
    "int8": "i8",
    "uint8": "ui8",
    "bool": "i1",
}
_DOT = (
    "lhs_batching_dimensions",
    "rhs_batching_dimensions",
    "lhs_contracting_dimensions",
    "rhs_contracting_dimensions",
)


_COUNT = TensorType((), int32)


def to_stablehlo(graph: Graph) -> str:
    """The graph as the public function @main of an MLIR module."""
    return _Printer(_expanded(graph)).module()


def _expanded(graph: Graph) -> Graph:
    """A copy without composites."""
    b = GraphBuilder(graph.name)
    values: dict[Value, Value] = {v: b.input(v.name, v.shape, v.dtype) for v in graph.inputs}
    for op in graph.ops:
        operands = tuple(values[v] for v in op.operands)
        if OPS[op.name].composite:
            results = expand(Op(op.name, operands, op.attrs, op.results), b)
        elif op.name == "loop":
            body: Body = op.attrs["body"]
            results = b.loop(replace(body, graph=_expanded(body.graph), _memo={}), *operands)
        else:
            results = b.append(op.name, operands, op.attrs).results
        values.update(zip(op.results, results))
    for i, (value, name) in enumerate(zip(graph.outputs, graph.output_names)):
        b.output(values[value], name, b.graph.inputs[graph.aliases[i]] if i in graph.aliases else None)
    return b.build()


class _Printer:
    """Numbers the values in order; an op that needs a constant first takes a number more."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: dict[Value, str] = {v: f"%arg{i}" for i, v in enumerate(graph.inputs)}
        self.lines: list[str] = []
        self.count = 0

    def module(self) -> str:
        """All of the text."""
        into = {j: i for i, j in self.graph.aliases.items()}
        arguments = []
        for i, value in enumerate(self.graph.inputs):
            alias = f" {{tf.aliasing_output = {into[i]} : i32}}" if i in into else ""
            arguments.append(f"{self.names[value]}: {_type(value.type)}{alias}")
        for op in self.graph.ops:
            self.op(op)
        results = ", ".join(_type(v.type) for v in self.graph.outputs)
        returned = ", ".join(self.names[v] for v in self.graph.outputs)
        head = f"  func.func public @main({', '.join(arguments)}) -> ({results}) {{"
        end = f'    "func.return"({returned}) : ({results}) -> ()'
        return "\n".join(["module {", head, *self.lines, end, "  }", "}", ""])

    def fresh(self) -> str:
        """The next name."""
        self.count += 1
        return f"%{self.count - 1}"

    def constant(self, value: Any, of: TensorType) -> str:
        """A constant on a line of its own; its name."""
        name = self.fresh()
        self.lines.append(f'    {name} = "stablehlo.constant"() {{value = {_dense(value, of)}}} : () -> {_type(of)}')
        return name

    def op(self, op: Op) -> None:
        """One op; reduce takes its starting value as an operand first, and like scatter a body."""
        if op.name == "constant":
            self.names[op.result] = self.constant(op.attrs["value"], op.result.type)
            return
        operands, types = [self.names[v] for v in op.operands], [v.type for v in op.operands]
        region = ""
        if op.name in ("reduce", "scatter"):
            scalar = TensorType((), op.result.dtype)
            region = f" ({{{_body(op.attrs['kind'], scalar)}}})"
            if op.name == "reduce":
                operands.append(self.constant(_start(op.attrs["kind"], scalar.dtype), scalar))
                types.append(scalar)
        if op.name == "custom_call":
            self.call(op, operands, types)
            return
        if OPS[op.name].kind == COLLECTIVE:
            for given, made in _separate(op):
                self.collective(op, given, made)
            return
        if op.name == "loop":
            self.loop(op)
            return
        self.names[op.result] = name = self.fresh()
        dialect = "chlo" if op.name in ("erf", "atan") else "stablehlo"
        attrs = _attributes(op)
        shown = f" {{{attrs}}}" if attrs else ""
        signature = f"({', '.join(map(_type, types))}) -> {_type(op.result.type)}"
        self.lines.append(f'    {name} = "{dialect}.{op.name}"({", ".join(operands)}){region}{shown} : {signature}')

    def collective(self, op: Op, operands: Sequence[Value], results: Sequence[Value]) -> None:
        """What ranks do together; results are numbered as one group."""
        name, many = self.fresh(), len(results) > 1
        for i, value in enumerate(results):
            self.names[value] = f"{name}#{i}" if many else name
        given, made = (", ".join(_type(v.type) for v in values) for values in (operands, results))
        region = f" ({{{_body(op.attrs['kind'], TensorType((), results[0].dtype))}}})" if _has_body(op) else ""
        shown = f" {{{attrs}}}" if (attrs := _collective_attributes(op)) else ""
        self.lines.append(
            f'    {name}{f":{len(results)}" if many else ""} = "stablehlo.{op.name}"'
            f"({', '.join(self.names[v] for v in operands)}){region}{shown} : "
            f"({given}) -> {f'({made})' if many else made}"
        )

    def line(
        self, name: str, operands: list[str], types: list[TensorType], result: TensorType, attrs: str = ""
    ) -> str:
        """One op of one result on a line of its own; the result's name."""
        made, shown = self.fresh(), f" {{{attrs}}}" if attrs else ""
        signature = f"({', '.join(map(_type, types))}) -> {_type(result)}"
        self.lines.append(f'    {made} = "stablehlo.{name}"({", ".join(operands)}){shown} : {signature}')
        return made

    def loop(self, op: Op) -> None:
        """A while that counts its rounds, and carries results; windows are slices of what is laid out flat."""
        body: Body = op.attrs["body"]
        flat = [w.window is not None for w in body.writes]
        starts = {r.carry: r.operand for r in body.reads if r.carry is not None}
        state, types = [self.constant(0, _COUNT)], [_COUNT]
        for i, (write, value) in enumerate(zip(body.writes, op.results)):
            source = write.operand if write.operand is not None else starts.get(i)
            name = self.constant(0, value.type) if source is None else self.names[op.operands[source]]
            whole = TensorType((value.type.size,), value.dtype) if flat[i] else value.type
            state.append(self.line("reshape", [name], [value.type], whole) if flat[i] else name)
            types.append(whole)
        sources = [self._source(op, read.operand, read.window) for read in body.reads]
        made = self.counted(body.rounds, state, types, lambda names: self._round(body, names, sources, types))
        for i, value in enumerate(op.results):
            name = f"{made}#{i + 1}"
            self.names[value] = self.line("reshape", [name], [types[i + 1]], value.type) if flat[i] else name

    def counted(
        self, rounds: int, state: list[str], types: list[TensorType], write: Callable[[list[str]], list[str]]
    ) -> str:
        """A while over a state that begins with a count; `write` writes a round for the names of the state, and gives
        those of the next."""
        made, signature = self.fresh(), ", ".join(map(_type, types))
        asked, given = ([self.fresh() for _ in types] for _ in range(2))
        heads = [", ".join(f"{n}: {_type(t)}" for n, t in zip(names, types)) for names in (asked, given)]
        self.lines.append(f'    {made}:{len(types)} = "stablehlo.while"({", ".join(state)}) ({{^bb0({heads[0]}):')
        count, truth = [asked[0], self.constant(rounds, _COUNT)], TensorType((), bool_)
        less = "comparison_direction = #stablehlo<comparison_direction LT>"
        more = self.line("compare", count, [_COUNT, _COUNT], truth, less)
        self.lines.append(f'    "stablehlo.return"({more}) : (tensor<i1>) -> ()}}, {{^bb0({heads[1]}):')
        returned = ", ".join(write(given))
        self.lines.append(
            f'    "stablehlo.return"({returned}) : ({signature}) -> ()}}) : ({signature}) -> ({signature})'
        )
        return made

    def _source(self, op: Op, operand: int, window: LoopWindow | None) -> tuple[str, TensorType]:
        """An operand, laid out flat where a window of it is read."""
        value = op.operands[operand]
        if window is None:
            return self.names[value], value.type
        flat = TensorType((value.type.size,), value.dtype)
        return self.line("reshape", [self.names[value]], [value.type], flat), flat

    def _round(
        self, body: Body, state: list[str], sources: list[tuple[str, TensorType]], types: list[TensorType]
    ) -> list[str]:
        """The ops of one round; what it returns."""
        for read, value, (name, kind) in zip(body.reads, body.graph.inputs, sources):
            if read.carry is not None:
                self.names[value] = state[read.carry + 1]
            elif read.window is None:
                self.names[value] = name
            else:
                part = TensorType((value.type.size,), value.dtype)
                attrs = f"slice_sizes = array<i64: {value.type.size}>"
                at = self._first(read.window, state[0])
                cut = self.line("dynamic_slice", [name, at], [kind, _COUNT], part, attrs)
                self.names[value] = self.line("reshape", [cut], [part], value.type)
        for op in body.graph.ops:
            self.op(op)
        returned = [self.line("add", [state[0], self.constant(1, _COUNT)], [_COUNT, _COUNT], _COUNT)]
        for i, (write, value) in enumerate(zip(body.writes, body.graph.outputs)):
            name = self.names[value]
            if write.window is not None:
                part, whole = TensorType((value.type.size,), value.dtype), types[i + 1]
                name = self.line("reshape", [name], [value.type], part)
                at = self._first(write.window, state[0])
                given = [state[i + 1], name, at]
                name = self.line("dynamic_update_slice", given, [whole, part, _COUNT], whole)
            returned.append(name)
        return returned

    def _first(self, window: LoopWindow, number: str) -> str:
        """Where a window begins in the round at hand."""
        both = [_COUNT, _COUNT]
        moved = self.line("multiply", [number, self.constant(window.step, _COUNT)], both, _COUNT)
        return self.line("add", [moved, self.constant(window.start, _COUNT)], both, _COUNT)

    def call(self, op: Op, operands: list[str], types: list[TensorType]) -> None:
        """A custom_call by the callee's name; results are numbered as one group."""
        name, callee = self.fresh(), op.attrs["callee"]
        many = len(op.results) > 1
        for i, value in enumerate(op.results):
            self.names[value] = f"{name}#{i}" if many else name
        result = ", ".join(_type(v.type) for v in op.results)
        signature = f"({', '.join(map(_type, types))}) -> {f'({result})' if many else result}"
        target = f'call_target_name = "{callee.name}", backend_config = "{callee.digest}"'
        self.lines.append(
            f'    {name}{f":{len(op.results)}" if many else ""} = "stablehlo.custom_call"({", ".join(operands)}) '
            f"{{{target}}} : {signature}"
        )


def _type(value_type: TensorType) -> str:
    return f"tensor<{'x'.join([*map(str, value_type.shape), _ELEMENT[value_type.dtype.name]])}>"


def _body(kind: str, scalar: TensorType) -> str:
    """The region that combines two elements: the old and the new."""
    t = _type(scalar)
    returned, step = "%b", ""
    if kind != "assign":
        returned, step = "%r", f'%r = "stablehlo.{kind}"(%a, %b) : ({t}, {t}) -> {t} '
    return f'^bb0(%a: {t}, %b: {t}): {step}"stablehlo.return"({returned}) : ({t}) -> ()'


def _start(kind: str, dtype: DType) -> Any:
    """What a reduction starts from: the number that changes nothing."""
    if kind in ("add", "or"):
        return 0
    if kind in ("multiply", "and"):
        return (
            1
            if kind == "multiply" or dtype.kind == "b"
            else -1
            if dtype.kind == "i"
            else 2 ** (8 * dtype.itemsize) - 1
        )
    if dtype.is_float:
        return -math.inf if kind == "maximum" else math.inf
    info = np.iinfo(dtype.numpy)
    return int(info.min if kind == "maximum" else info.max)


def _dense(value: Any, of: TensorType) -> str:
    if not isinstance(value, np.ndarray):
        return f"dense<{_number(value, of.dtype)}> : {_type(of)}"
    if of.dtype.kind == "b":
        return f"dense<{_nested(value)}> : {_type(of)}"
    return f'dense<"0x{value.tobytes().hex().upper()}"> : {_type(of)}'


def _nested(array: np.ndarray[Any, Any]) -> str:
    return "[" + ", ".join(map(_nested, array)) + "]" if array.ndim else str(bool(array)).lower()


def _number(value: Any, dtype: DType) -> str:
    """Decimals must have a point; what is no number is written as its bits."""
    if not dtype.is_float:
        return number_text(value, dtype)
    if math.isfinite(value):
        return f"{float(value):.17e}"
    held = np.asarray(value).astype(dtype.numpy)
    return "0x" + held.tobytes()[::-1].hex().upper()


def _attributes(op: Op) -> str:
    attrs = op.attrs
    if op.name == "compare":
        return f"comparison_direction = #stablehlo<comparison_direction {attrs['comparison_direction']}>"
    if op.name == "dot_general":
        numbers = f"dot_dimension_numbers = #stablehlo.dot<{_numbers(attrs, _DOT)}>"
        precision = f"#stablehlo<precision {attrs['precision']}>"
        return (
            numbers
            if attrs["precision"] == "DEFAULT"
            else f"{numbers}, precision_config = [{precision}, {precision}]"
        )
    if op.name == "convolution":
        return _convolution(attrs, len(op.result.shape) - 2)
    if op.name == "gather":
        names = tuple(k for k in attrs if k != "slice_sizes")
        sizes = _array(attrs["slice_sizes"])
        return f"dimension_numbers = #stablehlo.gather<{_numbers(attrs, names)}>, slice_sizes = {sizes}"
    if op.name == "scatter":
        names = tuple(k for k in attrs if k != "kind")
        return f"scatter_dimension_numbers = #stablehlo.scatter<{_numbers(attrs, names)}>"
    shown = []
    for key, value in attrs.items():
        if key not in ("shape", "dtype", "kind"):
            shown.append(f"{key} = {_array(value) if isinstance(value, tuple) else f'{value} : i64'}")
    return ", ".join(shown)


def _convolution(attrs: dict[str, Any], rank: int) -> str:
    space = ", ".join(map(str, range(rank)))
    sides = ", ".join(f"[{low}, {high}]" for low, high in zip(attrs["padding_low"], attrs["padding_high"]))
    reversal = ", ".join([str(attrs["window_reversal"]).lower()] * rank)
    precision = f"#stablehlo<precision {attrs['precision']}>"
    shown = [f"{k} = {_array(attrs[k])}" for k in ("window_strides", "lhs_dilation", "rhs_dilation")]
    shown += [f"{k} = {attrs[k]} : i64" for k in ("feature_group_count", "batch_group_count")]
    shown += [
        f"padding = dense<[{sides}]> : tensor<{rank}x2xi64>",
        f"window_reversal = array<i1: {reversal}>",
        f"dimension_numbers = #stablehlo.conv<[b, f, {space}]x[o, i, {space}]->[b, f, {space}]>",
        f"precision_config = [{precision}, {precision}]",
    ]
    return ", ".join(shown)


def _numbers(attrs: dict[str, Any], names: tuple[str, ...]) -> str:
    """Dimension numbers in the order of StableHLO's own attributes, which is that of the op table."""
    return ", ".join(f"{k} = {list(v) if isinstance(v, tuple) else v}" for k in names if (v := attrs[k]) != ())


def _array(values: tuple[int, ...]) -> str:
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


# -- collectives: groups of partitions of one SPMD module -----------------------------------------------------------


def _separate(op: Op) -> Iterator[tuple[tuple[Value, ...], tuple[Value, ...]]]:
    """Operands and results of the ops that it takes: reduce_scatter has one of each."""
    if op.name == "reduce_scatter":
        yield from (((x,), (y,)) for x, y in zip(op.operands, op.results))
    else:
        yield op.operands, op.results


def _has_body(op: Op) -> bool:
    """Whether it says with a region how two elements are combined."""
    return op.name in _WITH_BODY


def _collective_attributes(op: Op) -> str:
    """All attributes as text."""
    attrs = op.attrs
    if op.name == "partition_id":
        return ""
    if op.name == "collective_permute":
        ends = attrs["source_target_pairs"]
        return f"{_HANDLE}, source_target_pairs = {_groups(ends, 2)}"
    shown = [_HANDLE, f"replica_groups = {_groups(attrs['replica_groups'], attrs['group_size'])}"]
    if op.name in ("all_reduce", "all_gather", "reduce_scatter"):
        shown.append("use_global_device_ids")
    named = ("all_gather_dim", "scatter_dimension", "split_dimension", "concat_dimension")
    shown += [f"{key} = {attrs[key]} : i64" for key in named if key in attrs]
    if op.name == "all_to_all":
        shown.append(f"split_count = {attrs['group_size']} : i64")
    return ", ".join(shown)


def _groups(numbers: tuple[int, ...], columns: int) -> str:
    rows = [list(numbers[i : i + columns]) for i in range(0, len(numbers), columns)]
    return f"dense<{rows}> : tensor<{len(rows)}x{columns}xi64>" if rows else "dense<> : tensor<0x2xi64>"
