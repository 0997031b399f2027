# SPDX-License-Identifier: Apache-2.0
"""From an FX graph of ATen operators to a Graph.

The FX graph is functional (no operator writes to its arguments) and every node carries a fake tensor in
`meta["val"]`. Each operator goes through the table in `lowerings`; those that it lacks are collected, and one error
names them all.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import fx

from trnlab.errors import GraphError, Location, NumericsError, TrnlabError, UnsupportedOpError
from trnlab.frontends.common.formats import begin
from trnlab.frontends.torch import low_precision
from trnlab.frontends.torch.decompositions import composed, factors, fused_modules, grouped
from trnlab.frontends.torch.decompositions.doubles import narrow_moments
from trnlab.frontends.torch.decompositions.narrow_numbers import in_format
from trnlab.frontends.torch.decompositions.split import kept
from trnlab.frontends.torch.device.buffers import ChipArray
from trnlab.frontends.torch.device.types import is_narrowed, is_opaque, is_wide, type_of, unnarrowed
from trnlab.frontends.torch.findings import provenance, survey
from trnlab.frontends.torch.findings.locations import is_gradient, location_of
from trnlab.frontends.torch.findings.refusals import UnsupportedOp
from trnlab.frontends.torch.findings.vendor_limits import note_limits
from trnlab.frontends.torch.lowerings import (
    LOWERINGS,
    LoweringSite,
    Randomness,
    UnsupportedOperatorForm,
    complex_numbers,
    lowering_of,
)
from trnlab.frontends.torch.pytorch.dispatcher import OpOverload
from trnlab.frontends.torch.pytorch.fakes import FakeTensor, unset_fake_temporarily
from trnlab.frontends.torch.recomputation import part_of
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, TensorType, Value
from trnlab.graph.ops import OPS, SOURCE
from trnlab.graph.overflow import OverflowFlags
from trnlab.numerics.dtypes import bfloat16, float32

_NO_LOWERING = "it has no lowering to the chip"
_LISTED = "write it with operators that trnlab.frontends.torch.operators() lists, or compute it before the step"
# Beginnings of operator names, and what to do instead of them.
_WAYS_OUT = {
    "aten._linalg": "compute it on the host before the step",
    "aten.linalg": "compute it on the host before the step",
    "aten._fft": "compute it on the host before the step",
    "aten._thnn_fused": "write the cell out with linear, sigmoid and tanh",
}
_DEFECT = "TRN219"
EXACT = "trnlab_exact"  # in the meta of a placeholder: its float32 is not narrowed where all else is
# Operators, and the argument that is a statistic of the forward pass.
_STATISTICS = {"trnlab::attention_backward": 5, "trnlab::attention_bias_backward": 5}
_UNKNOWN = object()  # a result that cannot be described, of an operator that was refused already


def operators() -> list[str]:
    """Names of the ATen operators that have a lowering; others work when PyTorch can split them into these."""
    return sorted(map(str, LOWERINGS))


@dataclass(frozen=True)
class Imported:
    """A graph; `inputs[i]` names the FX placeholder behind graph input i, None for the seed of random numbers and for
    `states`.

    `outputs[i]` is the place, among the FX graph's outputs, of graph output i; the updates of `states` follow them.
    """

    graph: Graph
    inputs: tuple[str | None, ...]
    outputs: tuple[int, ...]
    # names of inputs that are the program's own state, float32, zero at first: they overwrite themselves
    states: tuple[str, ...] = ()
    exact: frozenset[str] = frozenset()  # names of placeholders that stay float32 where all else is narrowed
    # which shard of a tensor draws from a seed, by the name of its input, for `draws.new_seed`
    shards: Mapping[str, int] = field(default_factory=dict)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's core decompositions, without the operators that have a lowering of their own: those stay whole."""
    global _kept
    base, lowered = kept(), tuple(LOWERINGS)
    if _kept is None or _kept[0] is not base or _kept[1] != lowered:
        table = {**base, **fused_modules.decompositions(), **grouped.decompositions(), **composed.decompositions()}
        whole = {op: how for op, how in table.items() if op not in LOWERINGS} | factors.decompositions()
        _kept = base, lowered, whole
    return dict(_kept[2])


_kept: tuple[Any, tuple[Any, ...], dict[Any, Callable[..., Any]]] | None = None


def import_fx(module: fx.GraphModule, name: str, aliases: dict[int, str] | None = None) -> Imported:
    """Build the graph of `module`.

    `aliases[i]` names the placeholder whose memory output i overwrites. Placeholders that nothing reads or overwrites
    do not become inputs. Raises UnsupportedOpError that lists every operator without a lowering.
    """
    return _Importer(module, name, aliases or {}).run()


class _Importer:
    def __init__(self, module: fx.GraphModule, name: str, aliases: dict[int, str]) -> None:
        narrow_moments(module)
        self.module, self.b, self.aliases = module, GraphBuilder(name), aliases
        self.random = Randomness(self.b)
        self.watch = OverflowFlags(self.b)
        self.values: dict[fx.Node, Any] = {}
        self.part: int | None = None  # of the operator at hand, see `again`
        self.apart: dict[tuple[Value, int | None], Value] = {}
        self.inputs: dict[str, Value] = {}
        self.outputs: list[int] = []
        self.unsupported: list[UnsupportedOp] = []
        self.survey, self.of_gradients = survey.active(), set[int]()
        self.counts = _counts(module, aliases)
        self.exact: set[fx.Node] = set()  # whose float32 is not narrowed where all else is
        self.wide: set[fx.Node] = set()  # that give 64-bit integers

    def run(self) -> Imported:
        *nodes, output = self.module.graph.nodes
        with nullcontext() if is_narrowed() else unnarrowed():  # else each node asks for the session
            for node in nodes:
                self._import(node)
        if self.unsupported and (self.survey is None or self.survey.raises):
            raise _all_unsupported(self.unsupported)
        if self.survey is not None:
            self.survey.uses(self.unsupported, self.of_gradients)
            note_limits(self.module, self.survey)
        self._output(output)
        formats = low_precision.apply(self.module, self.b.graph, self.values)
        self.watch.finish()
        places = {value: name for name, value in self.inputs.items()}
        graph = self.b.build()
        begin(graph, formats)
        survey.of_graph(graph, (_name(n.target) for n in nodes if n.op == "call_function" and lowering_of(n.target)))
        inputs = tuple(places.get(v) for v in graph.inputs)
        values = {node: _replaced(held, formats.replaced) for node, held in self.values.items()}
        exact = frozenset(n.name for n in self.exact if n.op == "placeholder")
        provenance.note(graph, provenance.Provenance(self.module, values, inputs))
        states = (formats.state.name,) if formats.state is not None else ()
        return Imported(graph, inputs, tuple(self.outputs), states, exact, self.random.places)

    def _import(self, node: fx.Node) -> None:
        if self._is_exact(node):
            self.exact.add(node)
        if _is_wide(node):
            self.wide.add(node)
        with unnarrowed() if node in self.exact else nullcontext():
            getattr(self, f"_{node.op}")(node)

    def _is_exact(self, node: fx.Node) -> bool:
        """Whether a node is one of the step's own numbers (its learning rates, how many steps were made), or a number
        in the host's memory, or is made of nothing but these, or is read as a statistic of attention."""
        if node.op == "placeholder":
            own = bool(node.meta.get(EXACT)) or node in self.counts
            return own or _is_host_number(node.meta.get("val")) or _is_statistic(node)
        given = node.all_input_nodes
        return bool(given) and all(n in self.exact for n in given)

    # -- one method per kind of FX node ------------------------------------------------------------------------------
    def _placeholder(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and node.users:
            self.values[node] = int(value)  # shapes are static: this program is for this size
        if is_opaque(value):
            self.values[node] = value.real_obj  # and for this process group
        if not isinstance(value, torch.Tensor) or not (node.users or node.name in self.aliases.values()):
            return
        try:
            expected = type_of(value)
        except UnsupportedOpError as error:
            where = location_of(next(iter(node.users))) if node.users else None
            self.unsupported.append(_unsupported(f"input {node.target}", _shown([value]), where, error))
            self.values[node] = _UNKNOWN
            return
        self.values[node] = self.inputs[node.name] = self.b.input(str(node.target), expected.shape, expected.dtype)

    def _get_attr(self, node: fx.Node) -> None:
        held: Any = self.module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        if not isinstance(held, torch.Tensor):
            return  # a graph of a higher order operator, which has no lowering
        if isinstance(held, FakeTensor):  # it has no data: what made it is missing from the trace
            where = location_of(next(iter(node.users))) if node.users else None
            lost = UnsupportedOperatorForm("PyTorch's trace does not say what computes it", _LISTED)
            self.unsupported.append(_unsupported(f"constant {node.target}", _shown([held]), where, lost))
            self.values[node] = _UNKNOWN
            return
        try:
            expected = type_of(held)
            with unset_fake_temporarily():  # PyTorch traces with tensors that have no data; a constant has
                array = np.array(ChipArray(held, "a constant").array())
        except (UnsupportedOpError, NumericsError) as error:
            where = location_of(next(iter(node.users))) if node.users else None
            self.unsupported.append(_unsupported(f"constant {node.target}", _shown([held]), where, error))
            self.values[node] = _UNKNOWN
            return
        self.values[node] = self.b.constant(array, expected.dtype, expected.shape)

    def _call_function(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            whole = self.values[node.args[0]]  # type: ignore[index]
            held = whole is not _UNKNOWN and whole is not None  # a list within results has no type, and no stand-in
            self.values[node] = whole[node.args[1]] if held else _UNKNOWN
        elif isinstance(node.meta.get("val"), (int, torch.SymInt)):
            if not node.users:  # asking a symbol for its number makes the program one for that number
                return
            self.values[node] = int(node.meta["val"])
        else:
            where = location_of(node)
            with self.b.at(where, _name(node.target)):
                self.values[node] = self._computed(node, where)

    def _computed(self, node: fx.Node, where: Location | None) -> Any:
        """The results of one operator; zeros of the right types, or `_UNKNOWN`, for one that is refused."""
        if any(self.values.get(n) is _UNKNOWN for n in node.all_input_nodes):
            return self._standing_in(node) if self.survey is not None else _UNKNOWN
        types: list[TensorType | None] | None = None
        begin = len(self.b.graph.ops)
        try:
            types = _result_types(node)
            results = self._lower(node, LoweringSite(self.b, node, types, self.random, self.watch))
            self._follow(node, begin)
        except (UnsupportedOperatorForm, UnsupportedOpError) as refusal:
            if is_gradient(node.meta.get("stack_trace") or ""):
                self.of_gradients.add(len(self.unsupported))
            self.unsupported.append(_unsupported(_name(node.target), _operands(node), where, refusal))
            if types is None:
                return _UNKNOWN
            results = tuple(t and self.b.constant(0, t.dtype, t.shape) for t in types)
        results = self._narrowed(results, types)
        self._check(node, results, types, where)
        return results if isinstance(node.meta.get("val"), (tuple, list)) else results[0]

    def _standing_in(self, node: fx.Node) -> Any:
        """Zeros for the results of an operator whose operands are unknown, where the chip can hold such results."""
        try:
            types = _result_types(node)
        except UnsupportedOpError:
            return _UNKNOWN
        results = [t and self.b.constant(0, t.dtype, t.shape) for t in types]
        return results if isinstance(node.meta.get("val"), (tuple, list)) else results[0]

    def _lower(self, node: fx.Node, site: LoweringSite) -> tuple[Any, ...]:
        lowering = (
            complex_numbers.lowering_of(node) if complex_numbers.meets_complex(node) else lowering_of(node.target)
        )
        if lowering is None:
            name = _name(node.target)
            raise UnsupportedOperatorForm(
                _NO_LOWERING, next((do for start, do in _WAYS_OUT.items() if name.startswith(start)), _LISTED)
            )
        self.part = part_of(node)
        args, kwargs = in_format(node, self._translated(node.args), self._translated(node.kwargs))
        try:
            results = lowering(site, *args, **kwargs)
        except GraphError as error:
            raise UnsupportedOperatorForm(f"{error.what}: limit {error.limit}, got {error.got}", _LISTED) from error
        except (UnsupportedOperatorForm, UnsupportedOpError):
            raise
        except Exception as error:
            raise _defect(node, site.b.loc, f"raised {type(error).__name__}: {error}") from error
        return tuple(results) if isinstance(results, (tuple, list)) else (results,)

    def _narrowed(self, results: tuple[Any, ...], types: list[TensorType | None] | None) -> tuple[Any, ...]:
        """Where all is bf16, a result that its lowering left in float32 is rounded; statistics beside it are not."""
        if not is_narrowed() or types is None:
            return results
        first = results[0]
        if isinstance(first, Value) and types[0] is not None and {first.dtype, types[0].dtype} == {float32, bfloat16}:
            results = (self.b.convert(first, types[0].dtype), *results[1:])
        for i, value in enumerate(results[1:], 1):
            expected = types[i]
            if isinstance(value, Value) and expected is not None and value.dtype is float32:
                types[i] = replace(expected, dtype=float32)
        return results

    def _follow(self, node: fx.Node, begin: int) -> None:
        """See that 64-bit integers stay within 32 bits, or that the program notices when they do not."""
        read = [n for n in node.all_input_nodes if n in self.wide]
        given = [self.values[n] for n in read if isinstance(self.values.get(n), Value)]
        if not given and node not in self.wide:
            return
        unseen = self.watch.follow(self.b.graph.ops[begin:], given, node in self.wide)
        if unseen is not None:
            raise UnsupportedOperatorForm(
                f"its result may need more than the 32 bits that int64 has on the chip, and nothing watches "
                f"{unseen.name} for that",
                "compute it in int32, where it wraps as PyTorch's int32 does, or before the step",
            )

    def _output(self, node: fx.Node) -> None:
        """Outputs in order, without those that would overwrite an input by itself."""
        for i, result in enumerate(_flat(node.args[0])):
            value = self.values.get(result)
            target = self.inputs[self.aliases[i]] if i in self.aliases else None
            if value is not None and value is not _UNKNOWN and value is not target:
                self.b.output(value, self.aliases.get(i, result.name), target)
                self.outputs.append(i)

    # -- helpers -----------------------------------------------------------------------------------------------------
    def _translated(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            outside = self.part is not None and part_of(argument) != self.part
            return self._apart(self.values[argument]) if outside else self.values[argument]
        if isinstance(argument, (tuple, list)):
            return [self._translated(a) for a in argument]
        if isinstance(argument, dict):
            return {k: self._translated(a) for k, a in argument.items()}
        return argument

    def _apart(self, value: Any) -> Any:
        """A value as the part reads it that is computed again, so that it is not merged with the first time."""
        if not isinstance(value, Value) or (value.op is not None and OPS[value.op.name].kind == SOURCE):
            return value
        key = value, self.part
        if key not in self.apart:
            self.apart[key] = self.b.optimization_barrier(value)
        return self.apart[key]

    def _check(
        self,
        node: fx.Node,
        results: Sequence[Value | None],
        types: Sequence[TensorType | None],
        where: Location | None,
    ) -> None:
        for value, expected in zip(results, types):
            if value is not None and expected is not None and value.type != expected:
                raise _defect(node, where, f"gave {value.type} where PyTorch has {expected}")


def _is_host_number(value: Any) -> bool:
    """Optimizers keep their count of steps so."""
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu"


def _counts(module: fx.GraphModule, aliases: Mapping[int, str]) -> set[fx.Node]:
    """Numbers that the program overwrites by what it makes of such numbers alone, as optimizers on the device count
    their steps. In bfloat16 such a count would stop at 256."""
    placeholders = {n.name: n for n in module.graph.nodes if n.op == "placeholder"}
    results = _flat(next(n for n in module.graph.nodes if n.op == "output").args[0])
    pairs = [(placeholders[name], results[i]) for i, name in aliases.items() if name in placeholders]
    made = {given: result for given, result in pairs if _are_numbers(given)}
    while wrong := {given for given, result in made.items() if not _made_of(result, made)}:
        made = {given: result for given, result in made.items() if given not in wrong}
    return set(made)


def _are_numbers(node: fx.Node) -> bool:
    """Whether a node is a float without dimensions, or several."""
    return all(
        isinstance(v, torch.Tensor) and v.dim() == 0 and v.is_floating_point() for v in _flat(node.meta.get("val"))
    )


def _made_of(result: Any, given: Container[fx.Node]) -> bool:
    """Whether a number is computed from those given and Python's numbers alone."""
    waiting, seen = [result], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, fx.Node) or not _are_numbers(node):
            return False
        if node not in given and not node.all_input_nodes:
            return False
        seen.add(node)
        waiting += [n for n in node.all_input_nodes if n not in seen]
    return True


def _is_statistic(node: fx.Node) -> bool:
    """Whether a placeholder is read only where an operator wants a statistic of its forward pass."""
    places = [
        (u, _STATISTICS.get(getattr(u.target, "name", str)().partition(".")[0]))
        for u in node.users
        if isinstance(u.target, OpOverload)
    ]
    return len(places) == len(node.users) > 0 and all(
        at is not None and len(u.args) > at and u.args[at] is node for u, at in places
    )


def _replaced(held: Any, instead: Mapping[Value, Value]) -> Any:
    if isinstance(held, (tuple, list)):
        return type(held)(_replaced(item, instead) for item in held)
    return instead.get(held, held) if isinstance(held, Value) else held


def _defect(node: fx.Node, where: Location | None, what: str) -> UnsupportedOpError:
    """Nothing that a user did: said with the operator and the line all the same, so that it can be gone round."""
    return UnsupportedOpError(
        f"the lowering of {_name(node.target)} {what}; this is a defect of trnlab",
        code=_DEFECT,
        where=where,
        got=", ".join(_operands(node)),
        remedy="report it, and write the line in another way until it is mended",
    )


def _unsupported(
    name: str, operands: tuple[str, ...], where: Location | None, refusal: UnsupportedOperatorForm | TrnlabError
) -> UnsupportedOp:
    where = where and replace(where, phase="")  # a line is one place, there and back
    if isinstance(refusal, UnsupportedOperatorForm):
        return UnsupportedOp(name, operands, where, refusal.reason, refusal.do)
    if refusal.code == _DEFECT:
        raise refusal
    return UnsupportedOp(name, operands, where, refusal.what, refusal.remedy or _LISTED, refusal.code)


def _result_types(node: fx.Node) -> list[TensorType | None]:
    value = node.meta.get("val")
    results = value if isinstance(value, (tuple, list)) else [value]
    return [type_of(r) if isinstance(r, torch.Tensor) else None for r in results]


def _name(target: Any) -> str:
    return str(target).removesuffix(".default")


def _operands(node: fx.Node) -> tuple[str, ...]:
    return _shown([a.meta.get("val") for a in node.all_input_nodes])


def _shown(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(
        f"{str(v.dtype).removeprefix('torch.')}{list(v.shape)}" for v in values if isinstance(v, torch.Tensor)
    )


def _is_wide(node: fx.Node) -> bool:
    """Whether a node gives 64-bit integers."""
    return any(isinstance(t, torch.Tensor) and is_wide(t.dtype) for t in _flat(node.meta.get("val")))


def _flat(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _all_unsupported(uses: list[UnsupportedOp]) -> UnsupportedOpError:
    """One error for all, counted by operator; of several uses for one reason the first is shown."""
    distinct = list(dict.fromkeys(uses))
    groups: dict[tuple[str, str], list[UnsupportedOp]] = {}
    for use in distinct:
        groups.setdefault((use.name, use.reason), []).append(use)
    lines = []
    for i, group in enumerate(groups.values(), 1):
        more = f"\n      and  {len(group) - 1} more places" if len(group) > 1 else ""
        lines.append(f"  {i}. {group[0]}{more}")
    count = len({use.name for use in distinct})
    noun = "operator" if count == 1 else "operators"
    codes = {use.code for use in distinct}
    code = codes.pop() if len(codes) == 1 else "TRN201"
    error = UnsupportedOpError(f"{count} {noun} cannot run on the chip\n" + "\n".join(lines), code=code)
    error.ops = distinct  # type: ignore[attr-defined]
    return error
