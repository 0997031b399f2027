# SPDX-License-Identifier: Apache-2.0
"""From an FX graph of ATen operators to a Graph.

The FX graph is functional (no operator writes to its arguments) and every node carries a fake tensor in
`meta["val"]`. Each operator goes through the table in `lowerings`; those that it lacks are collected, and one error
names them all.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from trnlab.errors import GraphError, Location, UnsupportedOpError
from trnlab.frontends.torch.dlpack import to_numpy_alias
from trnlab.frontends.torch.locations import parse
from trnlab.frontends.torch.lowerings import LOWERINGS, Randomness, Refused, Site
from trnlab.frontends.torch.types import type_of
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, TensorType, Value

_REMEDY = (
    "write it with operators that trnlab.frontends.torch.operators() lists, or compute it on the host before the step"
)
_ALSO_SPLIT = ("elu", "leaky_relu", "hardtanh", "native_group_norm")  # core operators that split well all the same
_UNKNOWN = object()  # a result that cannot be described, of an operator that was refused already


def operators() -> list[str]:
    """Names of the ATen operators that have a lowering; others work when PyTorch can split them into these."""
    return sorted(map(str, LOWERINGS))


@dataclass(frozen=True)
class UnsupportedOp:
    """One operator that has no lowering: its name, the types it was given, the user's line, what to write instead."""

    name: str
    operands: tuple[str, ...]
    where: Location | None
    remedy: str

    def __str__(self) -> str:
        place = f"\n      at {self.where}" if self.where else ""
        text = f"\n         {self.where.text}" if self.where and self.where.text else ""
        return f"{self.name}({', '.join(self.operands)}){place}{text}\n      do {self.remedy}"


@dataclass(frozen=True)
class Imported:
    """A graph; `inputs[i]` names the FX placeholder behind graph input i, None for the seed of random numbers.

    `outputs[i]` is the place, among the FX graph's outputs, of graph output i.
    """

    graph: Graph
    inputs: tuple[str | None, ...]
    outputs: tuple[int, ...]


def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's core decompositions, without the operators that have a lowering of their own: those stay whole."""
    aten = torch.ops.aten
    packets = [getattr(aten, name + suffix) for name in _ALSO_SPLIT for suffix in ("", "_backward")]
    table = {**torch._decomp.core_aten_decompositions(), **torch._decomp.get_decompositions(packets)}
    return {op: how for op, how in table.items() if op not in LOWERINGS}


def import_fx(module: fx.GraphModule, name: str, aliases: dict[int, str] | None = None) -> Imported:
    """Build the graph of `module`.

    `aliases[i]` names the placeholder whose memory output i overwrites. Placeholders that nothing reads do not become
    inputs. Raises UnsupportedOpError that lists every operator without a lowering.
    """
    return _Importer(module, name).run(aliases or {})


class _Importer:
    def __init__(self, module: fx.GraphModule, name: str) -> None:
        self.module, self.b = module, GraphBuilder(name)
        self.random = Randomness(self.b)
        self.values: dict[fx.Node, Any] = {}
        self.inputs: dict[str, Value] = {}
        self.outputs: list[int] = []
        self.unsupported: list[UnsupportedOp] = []

    def run(self, aliases: dict[int, str]) -> Imported:
        for node in self.module.graph.nodes:
            handler = getattr(self, f"_{node.op}")
            handler(node, aliases) if node.op == "output" else handler(node)
        if self.unsupported:
            raise _all_unsupported(self.unsupported)
        places = {value: name for name, value in self.inputs.items()}
        graph = self.b.build()
        return Imported(graph, tuple(places.get(v) for v in graph.inputs), tuple(self.outputs))

    # -- one method per kind of FX node ------------------------------------------------------------------------------
    def _placeholder(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            self.values[node] = int(value)  # shapes are static: this program is for this size
        if not isinstance(value, torch.Tensor) or not node.users:
            return
        expected = type_of(value)
        self.values[node] = self.inputs[node.name] = self.b.input(str(node.target), expected.shape, expected.dtype)

    def _get_attr(self, node: fx.Node) -> None:
        held: Any = self.module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        if not isinstance(held, torch.Tensor):
            return  # a graph of a higher order operator, which has no lowering
        with unset_fake_temporarily():  # PyTorch traces with tensors that have no data; a constant has
            array = np.array(to_numpy_alias(held))
        expected = type_of(held)
        self.values[node] = self.b.constant(array, expected.dtype, expected.shape)

    def _call_function(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            whole = self.values[node.args[0]]  # type: ignore[index]
            self.values[node] = whole if whole is _UNKNOWN else whole[node.args[1]]
        elif isinstance(node.meta.get("val"), (int, torch.SymInt)):
            self.values[node] = int(node.meta["val"])
        else:
            where = parse(node.meta.get("stack_trace") or "")
            with self.b.at(where, _name(node.target)):
                self.values[node] = self._computed(node, where)

    def _computed(self, node: fx.Node, where: Location | None) -> Any:
        """The results of one operator; zeros of the right types, or `_UNKNOWN`, for one that is refused."""
        if any(self.values.get(n) is _UNKNOWN for n in node.all_input_nodes):
            return _UNKNOWN
        types: list[TensorType | None] | None = None
        try:
            types = _result_types(node)
            results = self._lower(node, Site(self.b, node, types, self.random))
        except (Refused, UnsupportedOpError) as refusal:
            remedy = refusal.what if isinstance(refusal, UnsupportedOpError) else str(refusal)
            self.unsupported.append(UnsupportedOp(_name(node.target), _operands(node), where, remedy))
            if types is None:
                return _UNKNOWN
            results = tuple(t and self.b.constant(0, t.dtype, t.shape) for t in types)
        self._check(node, results, types)
        return results if isinstance(node.meta.get("val"), (tuple, list)) else results[0]

    def _lower(self, node: fx.Node, site: Site) -> tuple[Any, ...]:
        lowering = LOWERINGS.get(node.target)
        if lowering is None:
            raise Refused(_REMEDY)
        args, kwargs = self._translated(node.args), self._translated(node.kwargs)
        try:
            results = lowering(site, *args, **kwargs)
        except GraphError as error:
            raise Refused(f"{error.what}: limit {error.limit}, got {error.got}") from error
        return tuple(results) if isinstance(results, (tuple, list)) else (results,)

    def _output(self, node: fx.Node, aliases: dict[int, str]) -> None:
        """Outputs in order, without those that would overwrite an input by itself."""
        for i, result in enumerate(_flat(node.args[0])):
            value = self.values.get(result)
            target = self.inputs[aliases[i]] if i in aliases else None
            if value is not None and value is not _UNKNOWN and value is not target:
                self.b.output(value, aliases.get(i, result.name), target)
                self.outputs.append(i)

    # -- helpers -----------------------------------------------------------------------------------------------------
    def _translated(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self.values[argument]
        if isinstance(argument, (tuple, list)):
            return [self._translated(a) for a in argument]
        if isinstance(argument, dict):
            return {k: self._translated(a) for k, a in argument.items()}
        return argument

    def _check(self, node: fx.Node, results: Sequence[Value | None], types: Sequence[TensorType | None]) -> None:
        for value, expected in zip(results, types):
            if value is not None and expected is not None and value.type != expected:
                raise AssertionError(f"lowering of {node.target} gave {value.type} where PyTorch has {expected}")


def _result_types(node: fx.Node) -> list[TensorType | None]:
    value = node.meta.get("val")
    results = value if isinstance(value, (tuple, list)) else [value]
    return [type_of(r) if isinstance(r, torch.Tensor) else None for r in results]


def _name(target: Any) -> str:
    return str(target).removesuffix(".default")


def _operands(node: fx.Node) -> tuple[str, ...]:
    fakes = [a.meta.get("val") for a in node.all_input_nodes]
    return tuple(
        f"{str(f.dtype).removeprefix('torch.')}{list(f.shape)}" for f in fakes if isinstance(f, torch.Tensor)
    )


def _flat(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _all_unsupported(ops: list[UnsupportedOp]) -> UnsupportedOpError:
    """One error for all; operators met several times at one line are named once."""
    distinct = list(dict.fromkeys(ops))
    listing = "\n".join(f"  {i}. {op}" for i, op in enumerate(distinct, 1))
    noun = "operator has" if len(distinct) == 1 else "operators have"
    error = UnsupportedOpError(f"{len(distinct)} {noun} no lowering to the chip\n{listing}", code="TRN201")
    error.ops = distinct  # type: ignore[attr-defined]
    return error
