# SPDX-License-Identifier: Apache-2.0
"""One run of one graph, op by op: each operator's result on the chip against the exact one for the chip's operands.

A second evaluation goes from the graph's inputs in float64 all the way. It does not accuse: it says how far the chip
has come from there, and where errors that others made were magnified.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from trnlab.errors import Location
from trnlab.frontends.torch.device.types import type_of
from trnlab.frontends.torch.findings.locations import is_gradient, location_of
from trnlab.frontends.torch.findings.provenance import Provenance
from trnlab.frontends.torch.lowerings import complex_numbers
from trnlab.frontends.torch.verify.exact import ReferenceCall, bf16, has_fractions, in_parts, scale_of, wide
from trnlab.graph.ir import Value
from trnlab.verify import conditions
from trnlab.verify.bounds import (
    ATTENTION,
    EXACT,
    PRODUCT,
    RANDOM,
    SUM,
    TERMS,
    OperatorBound,
    kind_of,
    roundoff,
    smallest,
)
from trnlab.verify.compare import Worst, relative, rounding_bound, within
from trnlab.verify.result import DIFFERS, ROUNDING, SAME, SKIPPED, OpLocation, OpResult

Array = np.ndarray[Any, Any]
LOST = 0.125  # of a tensor's length, gone to zero: more than a format should be let off with
REWRITTEN = 4.0  # times the largest error of an operand, for what was computed in another way
MEANINGFUL = 2.0**-44  # of the sum of the terms' magnitudes; a sum below that is zero but for rounding


class ChipResults:
    """Results of one run on the chip: arrays by value. Constants are not stored; they are what they are. rewritten:
    values that the compiler has made from others than the operator's operands."""

    def __init__(self, arrays: Mapping[Value, Array], rewritten: Collection[Value] = ()) -> None:
        self.arrays, self.rewritten = arrays, rewritten

    def tensor(self, value: Value, like: Tensor) -> Tensor | None:
        """A value as a tensor of the host in the kind of `like`, floats in float64."""
        array = self.arrays.get(value)
        if array is None:
            return None
        if like.dtype is torch.bool:
            return torch.from_numpy(np.asarray(array) != 0)
        if like.is_complex():
            return torch.view_as_complex(torch.from_numpy(np.array(array, np.float64, order="C")))
        if like.is_floating_point():
            return torch.from_numpy(np.asarray(array, np.float64))
        return torch.from_numpy(np.asarray(array, np.int64)).to(like.dtype)


class GraphEvaluation:
    """The ops of one graph in order. `results`: what `run` has found so far; `random`: numbers that were drawn."""

    def __init__(self, source: Provenance, chip: ChipResults, step: int, precision: str, backward: bool) -> None:
        self.source, self.chip, self.step, self.precision = source, chip, step, precision
        self.backward = backward
        self.local: dict[fx.Node, Any] = {}  # what the chip has
        self.total: dict[fx.Node, Any] = {}  # what exact arithmetic would have come to
        self.removed: set[fx.Node] = set()  # what the chip has no results of, which are the exact ones then
        self.random: list[Tensor] = []
        # where results of the way forward go, by layer, if anywhere
        self.layers: dict[str, list[Tensor]] | None = None

    def run(self, inputs: Mapping[str, Tensor]) -> Iterator[OpResult]:
        """Results of all ops; `inputs`: tensors by the names of placeholders."""
        last = {n: node for node in self.source.module.graph.nodes for n in node.all_input_nodes}
        for node in self.source.module.graph.nodes:
            if node.op == "placeholder":
                self._enter(node, inputs)
            elif node.op == "get_attr":
                self.local[node] = self.total[node] = wide(_attribute(self.source.module, str(node.target)).detach())
            elif node.op == "call_function":
                yield from self._call(node)
            for n in node.all_input_nodes:
                if last[n] is node:
                    self.local.pop(n, None)
                    self.total.pop(n, None)

    def _enter(self, node: fx.Node, inputs: Mapping[str, Tensor]) -> None:
        value = node.meta.get("val")
        if node.name in inputs:
            self.local[node] = self.total[node] = wide(inputs[node.name])
        elif isinstance(value, int | torch.SymInt):
            self.local[node] = self.total[node] = int(value)

    def _call(self, node: fx.Node) -> Iterator[OpResult]:
        value = node.meta.get("val")
        if node.target is operator.getitem:
            for env in (self.local, self.total):
                if node.args[0] in env:
                    env[node] = env[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        if isinstance(value, int | torch.SymInt):
            self.local[node] = self.total[node] = int(value)
            return
        if not all(n in self.local for n in node.all_input_nodes):
            yield self._skipped(node, "an operand was not compared")
            return
        yield from self._compared(node)

    def _compared(self, node: fx.Node) -> Iterator[OpResult]:
        kind, exact, why = _kind_of(node), None, ""
        call = ReferenceCall(node, self.local, self._drawn(node))
        if kind is not RANDOM:
            try:
                exact = call.result()
            except (RuntimeError, TypeError, NotImplementedError, IndexError, ValueError) as error:
                why = f"the host does not compute it in float64: {(str(error) or repr(error)).splitlines()[0]}"
        held = self._held(node, exact)
        self.local[node] = held
        self.total[node] = held
        if self.layers is not None and not self.is_gradient(node):
            layer = self.layers.setdefault(self.place(node).layer, [])
            layer += [t for t in _leaves(held) if isinstance(t, Tensor) and t.is_floating_point()]
        if exact is None:
            if why:
                yield self._skipped(node, why)
            elif kind is RANDOM and isinstance(held, Tensor) and "empty" not in str(node.target):
                self.random.append(held)
            return
        if all(n in self.total for n in node.all_input_nodes):
            self.total[node] = ReferenceCall(node, self.total, call.mask).result()
        check = _Check(self, node, kind, call)
        scale = terms = None
        for i, (got, want, value, all_along) in enumerate(
            zip(_leaves(held), _leaves(exact), _values(self.source.values.get(node)), _leaves(self.total[node]))
        ):
            if not isinstance(want, Tensor) or value is None:
                continue
            if value not in self.chip.arrays:
                if value.op is not None and value.op.name not in ("constant", "iota"):
                    yield self._skipped(node, "the compiler has removed it")
                continue
            if scale is None and has_fractions(want):
                scale, terms = scale_of(call, kind, exact, self.precision) if kind is not EXACT else (0.0, 1)
            room = _part(scale, i, exact)
            if want.is_complex():  # both parts may be off by what the number may
                got, want, all_along = (in_parts(v) if isinstance(v, Tensor) else v for v in (got, want, all_along))
                room = room.unsqueeze(-1) if isinstance(room, Tensor) else room
            check.from_others = value in self.chip.rewritten or not self.removed.isdisjoint(node.all_input_nodes)
            yield check.result(i, got, want, room, terms or 1, all_along)

    def _drawn(self, node: fx.Node) -> Tensor | None:
        """What dropout kept on the chip."""
        if str(node.target) != "aten.native_dropout.default":
            return None
        mask = _values(self.source.values.get(node))[1]
        kept = self.chip.tensor(mask, node.meta["val"][1]) if mask is not None else None
        if kept is not None:
            self.random.append(kept)
        return kept

    def _held(self, node: fx.Node, exact: Any) -> Any:
        """The chip's results of a node; where it has none, the exact ones."""
        values = _values(self.source.values.get(node))
        kinds = node.meta.get("val")
        several = isinstance(kinds, list | tuple)
        wanted = list(kinds) if several else [kinds]
        found = []
        for i, like in enumerate(wanted):
            tensor = None
            value = values[i] if i < len(values) else None
            if isinstance(value, Value) and isinstance(like, Tensor):
                tensor = self.chip.tensor(value, like)
            if tensor is None:
                self.removed.add(node)
            found.append(tensor if tensor is not None else _part(exact, i, exact if several else None))
        return found if several else found[0]

    def place(self, node: fx.Node) -> OpLocation:
        """The user's line behind a node."""
        where = location_of(node) or Location("", 0)
        return OpLocation(where.file, where.line, where.function, where.text, where.layer)

    def is_gradient(self, node: fx.Node) -> bool:
        """Whether a node belongs to the backward pass."""
        return self.backward or is_gradient(node.meta.get("stack_trace") or "")

    def blank(self, node: fx.Node, status: str, **more: Any) -> OpResult:
        """The result of a node, as far as it needs no values."""
        value = node.meta.get("val")
        like = next((t for t in _leaves(value) if isinstance(t, Tensor)), None)
        found = OpResult(
            self.step,
            0,
            str(node.target).removesuffix(".default"),
            self.is_gradient(node),
            self.place(node),
            tuple(like.shape) if like is not None else (),
            "",
            _kind_of(node).name,
            status,
        )
        return replace(found, **more)

    def _skipped(self, node: fx.Node, why: str) -> OpResult:
        return self.blank(node, SKIPPED, why=why)


def _kind_of(node: fx.Node) -> OperatorBound:
    return kind_of(str(node.target), complex_numbers.meets_complex(node))


def _is_beside_a_product(node: fx.Node) -> bool:
    """Whether a node sums what a matrix product reads, too, over leading dimensions: a bias gradient. It is a product
    with ones, and reads what the matrix product reads (`compiler.precision`)."""
    dims = node.args[1] if len(node.args) > 1 else None
    if not isinstance(dims, list | tuple) or sorted(dims) != list(range(len(dims))):  # type: ignore[type-var]
        return False
    readers = list(node.all_input_nodes[0].users)
    while readers:
        reader = readers.pop()
        if kind_of(str(reader.target)) is PRODUCT:
            return True
        if str(reader.target).split(".")[1:2] in (["view"], ["t"], ["permute"], ["transpose"], ["_unsafe_view"]):
            readers += reader.users
    return False


class _Check:
    """The comparison of one node's results."""

    def __init__(self, walk: GraphEvaluation, node: fx.Node, kind: OperatorBound, call: ReferenceCall) -> None:
        self.walk, self.node, self.kind, self.call = walk, node, kind, call
        self.from_others = False  # whether what is looked at was computed of others than the operands

    def result(self, i: int, got: Tensor, want: Tensor, scale: Any, terms: int, all_along: Any) -> OpResult:
        """What there is to say about result `i`."""
        like = _leaves(self.node.meta["val"])[i]
        format = type_of(like).dtype.name
        worst = self._worst(i, got, want, scale, terms, format)
        error = None
        if isinstance(all_along, Tensor) and want.is_floating_point() and all_along.shape == got.shape:
            error = relative(got.numpy(), all_along.numpy())
        if self.from_others and worst.ratio > 1 and error is not None:
            worst = self._as_rewritten(worst, error)
        lost = _lost(got, want, format)
        grown = self._grown(got, want, scale, error) if error is not None else (0.0, 0.0)
        lossy = grown[0] >= conditions.AMPLIFICATION and grown[1] >= conditions.LOSS
        found = self.walk.blank(
            self.node,
            SAME if worst.ratio == 0 else ROUNDING,
            shape=tuple(got.shape),
            format=format,
            kind=self.kind.name,
            ratio=worst.ratio,
            wrong=worst.wrong,
            index=worst.index,
            chip=worst.chip,
            reference=worst.reference,
            bound=worst.bound,
            error=error,
        )
        if worst.ratio <= 1 and lost <= LOST and not lossy:
            return found
        if worst.ratio <= 1 and lossy and lost <= LOST:
            found = self._against_the_whole(found, got, all_along)
            worst = Worst(found.index, found.chip, found.reference, found.bound, worst.ratio, found.wrong)
        situation = conditions.Situation(worst, format, self._operand(worst.index, got), self._finite(), lost, grown)
        why = conditions.condition(situation)
        return replace(found, status=DIFFERS, condition=why, remedy=conditions.remedy(why), why=_say(situation, why))

    def _worst(self, i: int, got: Tensor, want: Tensor, scale: Any, terms: int, format: str) -> Worst:
        """The worst element; of a matrix product, for operands as the PE array reads them or as they are."""
        exact = want.numpy()
        if self.kind is EXACT or not want.is_floating_point():
            return within(got.numpy(), exact, 0.0, format)
        bound = rounding_bound(exact, _array(scale), self.kind.c(terms), format)
        worst = within(got.numpy(), exact, bound, format)
        if worst.ratio > 1 and self._reads_bf16():
            rounded = in_parts(_leaves(self._as_read())[i])
            other = within(got.numpy(), rounded.numpy(), bound, format)
            worst = min(worst, other, key=lambda w: w.ratio)
        return worst

    def _as_rewritten(self, worst: Worst, error: float) -> Worst:
        """The verdict on a result that was not computed of its operands, as of a rotation or a norm that the compiler
        has found in several operators, or of a sum of products in PSUM: it may be as far from exact arithmetic as the
        operands are."""
        share = error / (REWRITTEN * self._largest_error())
        return replace(worst, ratio=share, wrong=0) if share <= 1 else worst

    def _largest_error(self) -> float:
        """The largest relative error of an operand beside exact arithmetic; at least what rounding is."""
        before = [self._error(n) for n in self.node.all_input_nodes]
        return max([roundoff("float32"), *(e for e in before if e is not None)])

    def _reads_bf16(self) -> bool:
        """Whether the PE array may have read the operands: of products, and of sums over rows beside them."""
        on_pe = self.kind in (PRODUCT, ATTENTION) or (self.kind is SUM and _is_beside_a_product(self.node))
        return on_pe and self.walk.precision == "bf16"

    def _as_read(self) -> Any:
        call = ReferenceCall(self.node, self.walk.local, self.call.mask)
        name = call.name.split(".")[1]
        skip = 1 if name in ("addmm", "baddbmm") else 0
        whole = {"lse", "bias"}
        schema = [a.name for a in self.node.target._schema.arguments]  # type: ignore[union-attr]
        call.args = [
            bf16(a) if isinstance(a, Tensor) and k >= skip and schema[k] not in whole else a
            for k, a in enumerate(call.args)
        ]
        return call.result()

    def _grown(self, got: Tensor, want: Tensor, scale: Any, error: float) -> tuple[float, float]:
        """How much larger the result's error is than its operands', where the op is a sum that means anything."""
        if self.kind not in (TERMS, SUM) or self._reads_bf16() or not error or not isinstance(scale, Tensor):
            return 0.0, 0.0
        exact = torch.linalg.vector_norm(want)
        if not float(exact) > MEANINGFUL * float(torch.linalg.vector_norm(scale)):
            return 0.0, 0.0
        return error / self._largest_error(), error

    def _error(self, node: fx.Node) -> float | None:
        got, exact = self.walk.local.get(node), self.walk.total.get(node)
        if not isinstance(got, Tensor) or not isinstance(exact, Tensor) or not got.is_floating_point():
            return None
        return relative(got.numpy(), exact.numpy())

    def _against_the_whole(self, found: OpResult, got: Tensor, all_along: Tensor) -> OpResult:
        """For a result that is right for its operands, the element that the operands' errors have hurt most."""
        distance = torch.nan_to_num((got - all_along).abs(), 0.0, 0.0)
        at = tuple(int(k) for k in np.unravel_index(int(distance.argmax()), got.shape)) if got.dim() else ()
        wrong = int((distance > conditions.LOSS * all_along.abs()).sum())
        return replace(found, index=at, chip=float(got[at]), reference=float(all_along[at]), wrong=wrong)

    def _operand(self, index: tuple[int, ...], got: Tensor) -> float:
        """The largest magnitude among operand elements at the place of a result's element."""
        same = [t for t in self.call.tensors if t.shape == got.shape]
        return max([float(t[index].abs()) for t in same], default=0.0)

    def _finite(self) -> bool:
        return all(bool(torch.isfinite(t).all()) for t in self.call.tensors)


def _lost(got: Tensor, want: Tensor, format: str) -> float:
    """Share of a tensor's length in elements that are too small for its format, and became zero."""
    if not want.is_floating_point():
        return 0.0
    gone = torch.where((got == 0) & (want.abs() < 4 * smallest(format)), want, 0.0)
    whole = float(torch.linalg.vector_norm(torch.nan_to_num(want, 0.0, 0.0, 0.0)))
    return float(torch.linalg.vector_norm(gone)) / whole if whole and bool((gone != 0).any()) else 0.0


def _say(s: conditions.Situation, why: str) -> str:
    """A sentence with the numbers of a condition."""
    if why == conditions.CANCELLATION:
        return f"the operands' errors grew {s.grown[0]:,.0f} times, to {s.grown[1]:.0%} of the result"
    if why == conditions.UNDERFLOW:
        return f"{s.lost:.0%} of the tensor's length became zero in {s.format}"
    if why in (conditions.NARROW, conditions.INSIDE):
        bits = conditions.right_bits(abs(s.worst.chip - s.worst.reference), s.worst.reference)
        return f"{max(bits, 0):.0f} bits of the number are right"
    return ""


def _values(found: Any) -> list[Value | None]:
    if found is None:
        return []
    return list(found) if isinstance(found, list | tuple) else [found]


def _leaves(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _part(value: Any, i: int, like: Any) -> Any:
    return value[i] if isinstance(like, list | tuple) and isinstance(value, list | tuple) else value


def _array(scale: Any) -> Any:
    return scale.numpy() if isinstance(scale, Tensor) else 0.0 if scale is None else scale


def _attribute(module: fx.GraphModule, path: str) -> Any:
    held: Any = module
    for part in path.split("."):
        held = getattr(held, part)
    return held


Report = Callable[[OpResult], None]
