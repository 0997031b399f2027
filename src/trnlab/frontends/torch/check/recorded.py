# SPDX-License-Identifier: Apache-2.0
"""Steps of scripts that nobody edited, as a walk meets them: programs of recorded operators, and what cuts them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from trnlab.frontends.common.engine import counted
from trnlab.frontends.torch.check.tensor_owners import Owned, names_of, owned
from trnlab.frontends.torch.check.unmaterialized import LARGE, room, unwritten
from trnlab.frontends.torch.check.values import compute, count_of
from trnlab.frontends.torch.device import dlpack
from trnlab.frontends.torch.device.dlpack import as_neuron
from trnlab.frontends.torch.findings.locations import layer_of
from trnlab.frontends.torch.geometry import TensorMeta
from trnlab.frontends.torch.recording import barriers
from trnlab.frontends.torch.recording.memory import Memories
from trnlab.frontends.torch.recording.passes import RecordingPart
from trnlab.frontends.torch.recording.programs import NumberedRecording, RecordedProgram
from trnlab.frontends.torch.recording.recorder import RecordedOperator, Slot
from trnlab.graph.ir import Graph

Shape = tuple[int, ...]
_MOST = 4096  # programs of a script that only computes forward, among which a period is looked for
_PERIODS = 256


@dataclass(frozen=True)
class Inputs:
    """What the inputs of a recorded program are, by kinds and names for people."""

    kinds: tuple[str, ...]
    names: tuple[str, ...]


@dataclass
class BatchReads:
    """What of a batch was read between two backward passes: of each tensor shape and format, in order."""

    read: dict[int, tuple[Shape, torch.dtype]]

    def counted(self, given: Collection[int]) -> tuple[int, str]:
        """How much was learned from: see `counted`. given: what the script brought to the device; a model's own
        indices count where there is nothing else."""
        ids = {at for at, (_, kind) in self.read.items() if not kind.is_floating_point and kind is not torch.bool}
        own = ids.difference(given) if not ids.isdisjoint(given) else ()
        return counted([(shape, str(kind)) for at, (shape, kind) in self.read.items() if at not in own], samples=0)


class Recordings:
    """What a walk knows of recorded programs beside the steps that they belong to."""

    def __init__(self) -> None:
        self.inputs: dict[Graph, Inputs] = {}
        self.owned: dict[int, Owned] = {}
        self.sequence: list[Graph] = []  # of all programs, until the script learns
        self._made: dict[int, StorageWeakRef] = {}  # results of programs, and what was drawn: of no batch
        self._before: set[int] = set()  # operators after which a backward pass begins
        self._now = BatchReads({})
        self._spans: list[BatchReads] = []
        self.counted: dict[Graph, tuple[int, str]] = {}  # how much a program reads of a batch
        self.unit = 1  # tokens of a sequence
        self._earlier: dict[
            int, tuple[StorageWeakRef, Owned]
        ] = {}  # memory that parameters had before their last data
        self._given: dict[int, StorageWeakRef] = {}  # what came to the device outside of models
        self._shapes: dict[int, Shape] = {}  # in which whole numbers came to the device: operators may see them flat

    # -- whose the inputs are -------------------------------------------------------------------------------------
    def met(self, program: RecordedProgram, reading: NumberedRecording) -> None:
        """A program runs."""
        graph = program.imported.graph
        slots = program.behind(reading)
        if graph not in self.inputs:
            self._look()
            kinds = tuple(self._kind(slot) for slot in slots)
            owners = [None if slot is None else self._owner(slot) for slot in slots]
            names = tuple("" if owner is None else owner.name for owner in owners)
            self.inputs[graph] = Inputs(kinds, names)
        batch = {s.key for s, kind in zip(slots, self.inputs[graph].kinds) if s and kind == "batch"}
        read = self._count(reading, batch)
        self.counted.setdefault(graph, BatchReads(read).counted(self._given))
        for slot in reading.slots:
            if slot.fresh and not slot.weak.expired():
                self._made[slot.key] = slot.weak

    def mark(self, nodes: Sequence[RecordedOperator]) -> None:
        """Say which memory parameters have: modes that follow a script hide whose views operators are given."""
        self._look()
        for node in nodes:
            for slot, _, _ in node.refs:
                if isinstance(slot, Slot):
                    owner = self.owned.get(slot.key)
                    slot.learns = slot.learns or (owner is not None and owner.kind == "parameter")

    def _look(self) -> None:
        """Whose memory is whose now. A tensor keeps the name that it had when its model was still there, which the
        last program of a script may outlive."""
        for key, mine in owned().items():
            known = self.owned.get(key)
            if known is None or known.tensor is not mine.tensor or known.kind != mine.kind:
                self.owned[key] = mine

    def arrived(self, tensor: Tensor) -> None:
        """The device has a tensor that is not computed from others of the device."""
        storage = tensor.untyped_storage()
        if not layer_of(sys._getframe()):
            self._given[storage._cdata] = StorageWeakRef(storage)
        if tensor.dim() > 1 and not tensor.is_floating_point():
            self._shapes[storage._cdata] = tuple(tensor.shape)

    def computed(self, tensor: Tensor) -> None:
        """Random numbers, or what the host computed of the device's tensors: an input of a program, and no batch."""
        storage = tensor.untyped_storage()
        self._made[storage._cdata] = StorageWeakRef(storage)

    def exchanges(self, tensor: Tensor) -> None:
        """A parameter is about to get other data: a program may still read what it has."""
        if isinstance(tensor, torch.nn.Parameter) and tensor.device.type == "neuron":
            storage = tensor.untyped_storage()
            mine = Owned("parameter", names_of().get(id(tensor), "parameter"), tensor)
            self._earlier[storage._cdata] = StorageWeakRef(storage), mine

    def _owner(self, slot: Slot) -> Owned | None:
        known = self.owned.get(slot.key)
        if known is not None and known.tensor.untyped_storage()._cdata == slot.key:
            return known
        weak, earlier = self._earlier.get(slot.key, (None, None))
        return earlier if weak is not None and not weak.expired() else None

    def _kind(self, slot: Slot | None) -> str:
        if slot is None:
            return "temporary"
        known = self._owner(slot)
        if known is not None:
            return known.kind
        made = self._made.get(slot.key)
        if made is not None and not made.expired():
            return "activation"
        return "temporary" if slot.written else "batch"

    # -- how much a step learns from ------------------------------------------------------------------------------
    def backward(self) -> None:
        """A backward pass begins after the operator that was recorded last."""
        latest = barriers.latest()
        if latest is not None:
            self._before.add(id(latest))
        else:
            self._close()

    def _count(self, reading: NumberedRecording, batch: set[int]) -> dict[int, tuple[Shape, torch.dtype]]:
        """The most that was read of each tensor of a batch: labels are read but for their last word before they are
        read whole."""
        read: dict[int, tuple[Shape, torch.dtype]] = {}
        for node in reading.nodes:
            for slot, form, _ in node.refs:
                if isinstance(slot, Slot) and slot.key in batch and form.shape:
                    shape, seen = self._shapes.get(slot.key, ()), _distinct(form)
                    if prod(shape) != prod(seen):
                        shape = seen
                    elif len(shape) > 1:
                        self.unit = prod(shape[1:])
                    for known in (self._now.read, read):
                        if slot.key not in known or prod(known[slot.key][0]) < prod(shape):
                            known[slot.key] = shape, form.dtype
            if id(node) in self._before:
                self._close()
        self._before.clear()
        return read

    def _close(self) -> None:
        """What reads a part of a batch that was read before, as a second loss does, learns from nothing new."""
        span, self._now = self._now, BatchReads({})
        if span.read and not any(span.read.keys() < other.read.keys() for other in self._spans):
            self._spans.append(span)

    def taken(self) -> tuple[int, str]:
        """What was learned from since this was last asked."""
        if not self._spans:
            self._close()
        found = [span.counted(self._given) for span in self._spans]
        self._spans, self._now = [], BatchReads({})
        self._before.clear()
        return sum(n for n, _ in found), next((kind for _, kind in found if kind), "")


def _distinct(form: TensorMeta) -> Shape:
    """The shape of a view without the dimensions along which it repeats its elements."""
    return tuple(n for n, step in zip(form.shape, form.strides) if step) if form.overlaps else form.shape


class RecordingObserver(Protocol):
    """Who is told what happens."""

    def parts(self, nodes: list[RecordedOperator]) -> list[RecordingPart]:
        """The programs that a recording is computed by."""

    def program(self, program: RecordedProgram, reading: NumberedRecording) -> None:
        """A recorded program ran."""

    def given_up(self, nodes: Sequence[RecordedOperator]) -> None:
        """Recorded operators are the host's."""

    def no_form(self, node: RecordedOperator, error: Exception) -> None:
        """The chip has no form of a recorded operator."""

    def random(self, name: str, tensor: Tensor) -> None:
        """Random numbers were drawn that a program reads."""

    def settled(self) -> None:
        """What an optimizer's step had recorded was computed."""


class RecordingEngine:
    """The part of an engine that recordings are handed to; nothing is computed that is large."""

    walk: Any
    unwritten: Any

    def parts(self, nodes: list[RecordedOperator]) -> list[RecordingPart]:
        """The programs that a recording is computed by."""
        found: list[RecordingPart] = self.walk.parts(nodes)
        return found

    def recorded(self, program: RecordedProgram, reading: NumberedRecording, memories: Memories) -> None:
        """A recording is computed now, by this program."""
        self.walk.program(program, reading)
        compute(reading.nodes, memories)

    def on_host(self, nodes: Sequence[RecordedOperator], counts: bool, memories: Memories) -> None:
        """Recorded operators are the host's."""
        if counts:
            self.walk.given_up(nodes)
        compute(nodes, memories)

    def refused(self, nodes: Sequence[RecordedOperator], error: Exception) -> None:
        """The chip has no form of these."""
        for node in nodes:
            self.walk.no_form(node, error)

    def left_to_host(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """An operator that cannot be recorded."""
        return self.unwritten.on_host(op, args, kwargs)

    def count(self, op: Any, mask: Tensor, numbers: Tensor, assumed: int) -> int:
        """How many places a mask chooses, as far as that can be known."""
        dlpack.before_host(numbers, True)
        found = count_of(mask, numbers, assumed)
        self.walk.counted(op, found[1])
        return found[0]

    def counted_before(self, op: Any) -> None:
        """An operator chooses by a mask whose places were counted just before."""
        self.walk.counted(op, None)

    def drawn(self, op: Any, like: Tensor, fill: Callable[[Tensor], Any]) -> Tensor:
        """Random numbers of an operator: drawn where they are few."""
        if like.numel() * like.element_size() >= LARGE:
            made = unwritten(like.shape, like.stride(), like.dtype, "neuron")
        else:
            host = torch.empty_like(like, device="cpu")
            fill(host)
            made = as_neuron(host)
        self.walk.random(op._schema.name, made)
        return made

    def exchanges(self, tensor: Tensor) -> None:
        """`tensor.data = other` of the same device."""
        self.walk.recordings.exchanges(tensor)

    def optimizer_stepped(self) -> None:
        """See `engine.optimizer_stepped`."""
        self.walk.settled()


def room_of(form: TensorMeta) -> Tensor:
    """Memory for a result."""
    return room(form.shape, form.strides, form.dtype)


def passes_of(sequence: Sequence[Graph]) -> tuple[list[Graph], int]:
    """The programs of one pass, and how many passes there were: the period that covers most of the sequence, of
    which what comes before the first and after the last is no part. All of it where nothing comes again."""
    graphs = list(sequence)[-_MOST:]
    best: tuple[int, int, int] = (0, 0, 0)  # how much it covers, minus its length, where it begins
    for period in range(1, min(len(graphs) // 2, _PERIODS) + 1):
        run = start = 0
        for i in range(len(graphs) - period):
            run = run + 1 if graphs[i] is graphs[i + period] else 0
            if run >= period:
                start = i - run + 1
                best = max(best, (run + period, -period, start))
    covered, length, start = best
    if not covered:
        return graphs, 1
    return graphs[start : start - length], covered // -length


def cuts(graphs: Sequence[tuple[Graph, Any]]) -> Counter[Any]:
    """Where a step was cut: the places that asked for a value before the last program of the step."""
    return Counter(place for (_, place), _ in pairwise(graphs) if place is not None)
