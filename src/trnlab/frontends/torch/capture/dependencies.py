# SPDX-License-Identifier: Apache-2.0
"""What a captured step depended on beside its arguments, whether that still holds, and what the step did to it.

Three kinds. Python state (`guards.state_snapshot`) is guarded by value. Tensors that hang on it are inputs, found
again at each step where they were found first; guarded are their form, and which of them are one. What the step
itself changed (an attribute set, an item added) is an effect, and is done again after each run of the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch.capture.external_tensors import (
    ExternalTensor,
    ExternalTensors,
    bits,
    is_real,
    share_memory,
)
from trnlab.frontends.torch.capture.state import TorchState
from trnlab.frontends.torch.capture.subject import form
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.sparse.parts import is_sparse, members
from trnlab.guards.changes import StateChange
from trnlab.guards.collected import Guard
from trnlab.guards.nodes import ORDER, GlobalsNode, LruCacheNode, StateNode, SummaryNode
from trnlab.guards.state_snapshot import StateSnapshot
from trnlab.guards.watch import random_states

_PLAIN = (int, float, bool, str, bytes, type(None), complex, torch.dtype, torch.device)


@dataclass(frozen=True)
class TensorLocation:
    """Where a tensor is found: a part of some object, or nowhere but here (`fixed`)."""

    label: str
    node: StateNode | _Buffers | None = None
    key: Any = None
    fixed: Tensor | None = None
    part: int | None = None  # of a sparse tensor that is there: which of the tensors that it is made of

    def now(self) -> Any:
        """What is there now."""
        value = self.fixed if self.node is None else self.node.read().get(self.key)
        return value if self.part is None or value is None else members(value)[self.part]


class _Buffers:
    """The sparse buffers of a module, which are no inputs by themselves, as a place where tensors are found."""

    def __init__(self, label: str, module: Any) -> None:
        self.label, self._module = f"model.{label}" if label else "model", module
        self.known = {key: value for key, value in module.named_buffers(recurse=False) if is_sparse(value)}

    def read(self) -> dict[str, Any]:
        """What the module has now."""
        return dict(self._module.named_buffers(recurse=False))


@dataclass
class _Cell:
    """A tensor that hangs on Python state. same_as: the tensor of the model or batch, or other cell, that it is."""

    place: TensorLocation
    form: Any
    same_as: tuple[str, int] | None = None


@dataclass(frozen=True)
class Effect:
    """The step set `node[key]`. leaves: plain values, places of tensors that existed before, numbers of outputs."""

    change: StateChange
    leaves: list[Any]
    spec: Any

    def value(self, groups: Mapping[str, Sequence[Any]]) -> Any:
        """What it sets in this run."""
        leaves = [leaf.now() if isinstance(leaf, TensorLocation) else leaf for leaf in self.leaves]
        leaves = [groups[leaf.group][leaf.index] if isinstance(leaf, _Given) else leaf for leaf in leaves]
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass(frozen=True)
class _Given:
    """A tensor of this run: of the batch, of the model, or an output."""

    group: str
    index: int


class Dependencies:
    """See the head of this module. `reusable`: the program may serve further calls while nothing has changed."""

    def __init__(
        self,
        snapshot: StateSnapshot,
        leaves: Sequence[Any],
        tensors: Sequence[Tensor],
        modules: Iterable[tuple[str, Any]] = (),
    ) -> None:
        self.snapshot, self._leaves, self._tensors = snapshot, list(leaves), list(tensors)
        self._buffers = [_Buffers(name, module) for name, module in modules]
        self.places: list[TensorLocation] = []
        self.effects: list[Effect] = []
        self.changes: list[StateChange] = []
        self.drawn: list[str] = []
        self.noted: list[str] = []  # what the step did that no look at Python's state foretells
        self._cells: list[_Cell] = []
        self._values: list[tuple[TensorLocation, bytes]] = []
        self._index: dict[int, list[TensorLocation]] | None = None
        self.others: list[Guard] = []  # of recorded kernels, and of process groups
        self._random = random_states()
        self.reusable = True
        self._distinct = 0

    # -- while capturing --------------------------------------------------------------------------------------------
    def add(self, found: ExternalTensor) -> str:
        """A tensor from outside is an input; returns its name."""
        if found.of is None:
            self.places.append(self._place(found.real))
        else:
            whole, part = found.of
            place = self._place(whole)
            self.places.append(replace(place, label=f"{place.label}, part {part}", part=part))
        return self.places[-1].label

    def _place(self, real: Tensor) -> TensorLocation:
        if self._index is None:
            self._index = {}
            for node in self.snapshot.nodes.values():
                for key, value in node.known.items():
                    if isinstance(value, Tensor):
                        self._index.setdefault(id(value), []).append(TensorLocation(node.at(key), node, key))
            for table in self._buffers:
                for key, value in table.known.items():
                    self._index.setdefault(id(value), []).append(TensorLocation(f"{table.label}.{key}", table, key))
        return self._index.get(id(real), [TensorLocation(f"a tensor {list(real.shape)} from outside", fixed=real)])[0]

    def finish(
        self, outside: ExternalTensors, written: Sequence[tuple[str, Tensor]], inputs: Sequence[Tensor]
    ) -> None:
        """The step is over: what did it read, and what has it changed?"""
        for name, tensor in written:
            _check_alone(name, tensor, inputs)
        self._values += [(self._place(real), values) for real, values in outside.read]
        self._place(torch.empty(0))
        self._note_cells()
        self.changes = self.snapshot.done()
        later = random_states()
        self.drawn = [name for name, state in self._random.items() if later.get(name) != state]
        self.noted += [f"takes from {label}, which does not say how far it is" for label in self.snapshot.unreadable]
        known = {id(t) for t in (*self._leaves, *self._tensors, *outside.made)}
        self.noted += [
            f"reads {place.label}, and nothing that can be watched leads to it"
            for place in self.places
            if place.fixed is not None and id(place.fixed) not in known
        ]
        self.reusable = not (self.drawn or self.noted)

    def _note_cells(self) -> None:
        own: dict[int, tuple[str, int]] = {id(x): ("batch", i) for i, x in enumerate(self._leaves)}
        own |= {id(t): ("model", i) for i, t in enumerate(self._tensors)}
        for id_, places in (self._index or {}).items():
            for place in places:
                tensor = place.node.known[place.key] if place.node else None
                if isinstance(tensor, Tensor) and not self.snapshot.framework.is_traced(tensor):
                    self._cells.append(_Cell(place, form(tensor), own.get(id_)))
                    own.setdefault(id_, ("cell", len(self._cells) - 1))
        now = [cell.place.node.known[cell.place.key] for cell in self._cells if cell.place.node is not None]
        self._distinct = _distinct(self._leaves, self._tensors, now)

    # -- before each run --------------------------------------------------------------------------------------------
    def failed(self, leaves: Sequence[Any], tensors: Sequence[Tensor]) -> str | None:
        """What is no longer as it was, for people."""
        found = self._failed(leaves, tensors)
        if found is None:
            self._leaves, self._tensors = list(leaves), list(tensors)
            self.snapshot.accept()
        else:
            self.snapshot.reject()
        return found

    def _failed(self, leaves: Sequence[Any], tensors: Sequence[Tensor]) -> str | None:
        for what, given, now in (("batch", self._leaves, leaves), ("tensor", self._tensors, tensors)):
            for i, (known, value) in enumerate(zip(given, now)):
                if known is not value and not self.snapshot.same(known, value):
                    return f"{what}[{i}] is another"
        change = self.snapshot.failed()
        if change is not None:
            return f"{change}{self._own(change)}"
        return next(self._moved(leaves, tensors), None) or next(filter(None, (g.failed() for g in self.others)), None)

    def _own(self, change: StateChange) -> str:
        if any(c.label == change.label for c in self.changes):
            return " (the step changes it itself: keep it in a tensor, or outside of the step)"
        return ""

    def _moved(self, leaves: Sequence[Any], tensors: Sequence[Tensor]) -> Iterator[str]:
        now: list[Any] = []
        groups = {"batch": leaves, "model": tensors, "cell": now}
        for cell in self._cells:
            value = cell.place.now()
            now.append(value)
            if not isinstance(value, Tensor) or form(value) != cell.form:
                yield f"{cell.place.label} is another kind of tensor"
            elif cell.same_as and groups[cell.same_as[0]][cell.same_as[1]] is not value:
                yield f"{cell.place.label} is another tensor"
        if self._distinct and self._distinct != _distinct(leaves, tensors, now):
            yield "two tensors are one, which were two before,"
        for place, values in self._values:
            if bits(place.now()) != values:
                yield f"the values of {place.label}, which the step asked for, have changed"

    # -- after each run ---------------------------------------------------------------------------------------------
    def apply(self, outputs: Sequence[Tensor], leaves: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        """Do to Python's state what the step did, with what this run was given and has computed."""
        groups = {"output": outputs, "batch": leaves, "model": tensors}
        values = [effect.value(groups) for effect in self.effects]  # all before the first of them is set
        for effect, value in zip(self.effects, values):
            effect.change.node.store(effect.change.key, value)

    def source(self, real: Tensor) -> Any:
        """Where an effect finds a tensor that existed before the step."""
        for group, given in (("batch", self._leaves), ("model", self._tensors)):
            index = next((i for i, x in enumerate(given) if x is real), None)
            if index is not None:
                return _Given(group, index)
        return self._place(real)


def _distinct(*groups: Sequence[Any]) -> int:
    """How many tensors these are, each counted once."""
    return len({id(x) for group in groups for x in group if isinstance(x, Tensor)})


def keep_traced(dependencies: Dependencies, outside: ExternalTensors) -> list[tuple[TensorLocation, Tensor]]:
    """Make effects of the changes; returns where the step kept tensors that it computed, and these."""
    kept: list[tuple[TensorLocation, Tensor]] = []
    for change in _storable(dependencies):
        leaves, spec = pytree.tree_flatten(change.after)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                real = leaf if is_real(leaf) else outside.real_of(leaf)
                leaves[i] = _Given("output", len(kept)) if real is None else dependencies.source(real)
                if real is None:
                    kept.append((TensorLocation(change.label, change.node, change.key), leaf))
            elif not isinstance(leaf, _PLAIN):
                dependencies.reusable = False
        dependencies.effects.append(Effect(change, leaves, spec))
    return kept


def _storable(dependencies: Dependencies) -> Iterator[StateChange]:
    """The changes, those of objects that the step made broken up into their parts."""
    for change in dependencies.changes:
        if isinstance(change.node, LruCacheNode):
            continue  # what it has kept of this step is dropped again
        if isinstance(change.node, SummaryNode) or change.key is ORDER:
            dependencies.reusable = False
            continue
        inner = StateSnapshot(TorchState())
        inner.names.anything = True
        for leaf in pytree.tree_leaves(change.after):
            if not isinstance(leaf, (Tensor, *_PLAIN)):
                inner.visit(leaf, change.label)
        parts = list(_traced_parts(inner))
        dependencies.reusable &= not parts
        yield from parts
        if not parts:
            yield change


def _traced_parts(snapshot: StateSnapshot) -> Iterator[StateChange]:
    for node in snapshot.nodes.values():
        for key, value in node.known.items():
            if snapshot.framework.is_traced(value) and not isinstance(node, GlobalsNode):
                yield StateChange(node, key, None, value)


def restore(dependencies: Dependencies) -> None:
    """The capture is over: take its tensors out of the user's objects, and put those back that the first run reads.
    Each run does to them what the step did."""
    repeated = {(id(e.change.node), e.change.key) for e in dependencies.effects if e.change.key is not ORDER}
    for change in dependencies.snapshot.done():
        leaves = pytree.tree_leaves((change.before, change.after))
        traced = any(map(dependencies.snapshot.framework.is_traced, leaves))
        moved = (id(change.node), change.key) in repeated and any(isinstance(x, Tensor) for x in leaves)
        if traced or moved:
            change.node.store(change.key, change.before)
    dependencies.snapshot.accept()


def _check_alone(name: str, tensor: Tensor, inputs: Sequence[Tensor]) -> None:
    """A tensor that the step writes to must not be seen through another input."""
    others = [t for t in inputs if t is not tensor and t.device == tensor.device and share_memory(t, tensor)]
    if others or sum(t is tensor for t in inputs) > 1:
        raise UnsupportedOpError(
            f"the step writes to {name}, which shares its memory with another input",
            code="TRN145",
            remedy="write to a copy (x = x.clone()), or do not hand over both",
        )
