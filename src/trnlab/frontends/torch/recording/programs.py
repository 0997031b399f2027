# SPDX-License-Identifier: Apache-2.0
"""Programs of recordings: found by what was recorded, or compiled from it.

What a program is for is the sequence of operators, the forms of their operands, and which of them share memory; where
that memory is does not matter. Floats that were others at the last time become inputs, those that are always the same
stay constants.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx

from trnlab.frontends.common import engine
from trnlab.frontends.torch.capture.import_fx import Imported, import_fx
from trnlab.frontends.torch.device.allocations import without
from trnlab.frontends.torch.device.dispatch import tracing_allowed
from trnlab.frontends.torch.device.types import unnarrowed
from trnlab.frontends.torch.findings.survey import raising
from trnlab.frontends.torch.geometry import MemoryRegion, TensorMeta, region
from trnlab.frontends.torch.pytorch.fakes import FakeTensorMode
from trnlab.frontends.torch.recording.memory import Array, Memories, SlotMemory, bound, of_number, stored
from trnlab.frontends.torch.recording.operators import divides, inverse
from trnlab.frontends.torch.recording.recorder import HostNumber, RecordedOperator, Ref, Slot
from trnlab.frontends.torch.recording.written_out import calls, written_out
from trnlab.graph.ir import Value


@dataclass(frozen=True, eq=False)
class InputLeaf:
    """Memory that is read and not written: a region of a slot, or a number of the host."""

    slot: Slot | None
    start: int
    shape: tuple[int, ...]
    kind: torch.dtype
    number: HostNumber | None = None


@dataclass(eq=False)
class NumberedRecording:
    """A recording with its memory numbered: what two recordings of the same step have in common is `key`."""

    nodes: list[RecordedOperator]
    written: set[Slot]
    leaves: list[InputLeaf] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    places: list[tuple[tuple[Any, ...], ...]] = field(default_factory=list)  # for each node, of each operand
    key: Hashable = None
    kept: frozenset[Slot] = frozenset()  # stored though nobody holds it

    def alive(self) -> tuple[int, ...]:
        """Numbers of the written slots that are stored: whose memory somebody can still see, and what is kept."""
        return tuple(i for i, s in enumerate(self.slots) if s in self.kept or s.seen())

    def numbers(self) -> list[float]:
        """The floats of all operators in order."""
        return [x for node in self.nodes for x in node.numbers]

    def divisors(self) -> set[int]:
        """Which of them an operator divides by."""
        by = [divides(node.about, node.made.template) for node in self.nodes for _ in node.numbers]
        return {i for i, is_divisor in enumerate(by) if is_divisor}


def read(nodes: list[RecordedOperator], kept: frozenset[Slot] = frozenset()) -> NumberedRecording:
    """Number the memory of a recording by where it is met first. kept: see `NumberedRecording`."""
    written = {ref[0] for node in nodes for ref in node.results}
    written |= {ref[0] for node in nodes for i, ref in enumerate(node.refs) if i in node.made.written}
    reading = NumberedRecording(nodes, written, kept=kept)  # type: ignore[arg-type]
    slots: dict[Slot, int] = {}
    leaves: dict[Hashable, int] = {}
    key: list[Hashable] = []

    def place(ref: Ref) -> tuple[Any, ...]:
        slot, form, offset = ref
        if isinstance(slot, Slot) and slot in written:
            if slot not in slots:
                slots[slot] = len(slots)
                reading.slots.append(slot)
                key.append((slot.shape, slot.kind, slot.fresh))
            return slots[slot], form, offset
        found, leaf = _leaf(slot, form, offset)
        what = id(slot), leaf.start, leaf.shape
        if what not in leaves:
            leaves[what] = len(leaves)
            reading.leaves.append(leaf)
            key.append((leaf.shape, leaf.kind, leaf.number is None))
        return -1 - leaves[what], form, found

    for node in nodes:
        places = tuple(place(ref) for ref in (*node.refs, *node.results))
        reading.places.append(places)
        key += node.made.number, places
    reading.key = tuple(key)
    return reading


def _leaf(slot: Slot | HostNumber, form: TensorMeta, offset: int) -> tuple[Any, InputLeaf]:
    """The memory that a view reads, and how the view lies in it: a region, or an offset in all of the storage."""
    if isinstance(slot, HostNumber):
        shape = tuple(slot.value.shape)
        return MemoryRegion(0, shape, ()), InputLeaf(None, 0, shape, slot.value.dtype, slot)
    room = slot.nbytes // slot.kind.itemsize
    found = region(form.memory, offset, room)
    if found is None:
        return offset, InputLeaf(slot, 0, (room,), slot.kind)
    return MemoryRegion(0, found.shape, found.slices), InputLeaf(slot, found.start, found.shape, slot.kind)


# -- programs -------------------------------------------------------------------------------------------------------


class RecordedProgram:
    """A compiled recording. outputs: numbers of the slots that it stores. constants: floats that it was made for;
    `classes`: those that are inputs, where those of one class have one value."""

    def __init__(
        self, reading: NumberedRecording, name: str, outputs: tuple[int, ...], numbers: list[float], open: set[int]
    ) -> None:
        self.outputs = outputs
        bits, divisors = _bits(numbers), reading.divisors()
        open = {i for i in open if i not in divisors or inverse(numbers[i]) is not None}
        classes: dict[tuple[int, bool], list[int]] = {}
        for i in sorted(open):
            classes.setdefault((bits[i], i in divisors), []).append(i)
        self.classes = list(classes.values())
        self.inverted = [is_divisor for _, is_divisor in classes]
        self.constants = {i: b for i, b in enumerate(bits) if i not in open}
        made = {ref[0] for node in reading.nodes for ref in node.results}
        self.given = [i for i, s in enumerate(reading.slots) if s not in made]
        self._name = name
        self._states: dict[str, Array] = {}  # what scales of FP8 look back on
        self._import(reading)

    @classmethod
    def check(cls, reading: NumberedRecording) -> None:
        """Raise what would be raised if this were compiled, without compiling it."""
        cls(reading, "a check", tuple(range(len(reading.slots))), reading.numbers(), set())

    def compile(self) -> RecordedProgram:
        """Make it ready to run."""
        self._program = engine.current().compile(self.imported.graph)
        return self

    def behind(self, reading: NumberedRecording) -> list[Slot | None]:
        """The memory behind each input of the graph; None for a number and for what the program has by itself."""
        memory = [*(leaf.slot for leaf in reading.leaves), *(reading.slots[i] for i in self.given)]
        places = [self._position.get(name or "", len(memory)) for name in self.imported.inputs]
        return [memory[at] if at < len(memory) else None for at in places]

    def fits(self, outputs: tuple[int, ...], bits: list[int], numbers: list[float]) -> bool:
        """Whether it computes what is wanted, for these floats."""
        return (
            outputs == self.outputs
            and all(bits[i] == b for i, b in self.constants.items())
            and all(bits[i] == bits[each[0]] for each in self.classes for i in each)
            and all(inverse(numbers[each[0]]) for each, is_divisor in zip(self.classes, self.inverted) if is_divisor)
        )

    def _import(self, reading: NumberedRecording) -> None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            memory = {
                -1 - i: torch.empty(leaf.shape, dtype=leaf.kind, device="cpu" if leaf.number else "neuron")
                for i, leaf in enumerate(reading.leaves)
            }
            for i in self.given:
                memory[i] = torch.empty(reading.slots[i].shape, dtype=reading.slots[i].kind, device="neuron")
            floats = [(torch.empty((), dtype=torch.float32), is_divisor) for is_divisor in self.inverted]
        inputs = {i: at for at, each in enumerate(self.classes) for i in each}
        with tracing_allowed():
            found = list(calls(reading.nodes, reading.places, inputs))
            module = written_out(found, memory, floats, self.outputs, mode)
        names = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        self._position = {n: i for i, n in enumerate(names)}
        with raising():
            self.imported: Imported = import_fx(module, self._name, self._aliases(module, names, len(reading.leaves)))
        pairs = zip(self.imported.graph.inputs, self.imported.inputs)
        if any(name is None and value.name not in self.imported.states for value, name in pairs):
            raise NotImplementedError("random numbers are drawn in the script's order")
        self._place = {place: i for i, place in enumerate(self.imported.outputs)}

    def _aliases(self, module: fx.GraphModule, names: list[str], first: int) -> dict[int, str]:
        """Which output overwrites which input: memory whose old contents are read."""
        read = {n.name for n in module.graph.nodes if n.op == "placeholder" and n.users}
        of = {slot: names[first + i] for i, slot in enumerate(self.given)}
        return {i: of[slot] for i, slot in enumerate(self.outputs) if slot in of and of[slot] in read}

    # -- running -----------------------------------------------------------------------------------------------------
    def run(self, reading: NumberedRecording, numbers: list[float], memories: Memories) -> None:
        """Compute, and store what is still seen, and what is kept. memories: of what was computed before.

        Raises NumericsError, with all memory as it was, for values that the chip cannot compute with.
        """
        targets = [self._target(reading, i, memories) for i in range(len(self.outputs))]
        given: list[Array] = []
        for value, name in zip(self.imported.graph.inputs, self.imported.inputs):
            if name is not None:
                given.append(self._input(reading, name, memories, numbers))
            else:
                given.append(self._own(value))
        kept = self.imported.graph.aliases if self.imported.graph.checks else {}
        for j in kept.values():
            given[j] = given[j].copy()
        with without(self._own_memory(reading)):
            results = self._program(given)
        for place, target in enumerate(targets):
            if target is not None and place in self._place:
                _store(target, results[self._place[place]])

    def _own_memory(self, reading: NumberedRecording) -> set[int]:
        """Storages that are written and no inputs: results and temporaries of the program."""
        return {slot.key for slot in set(reading.slots).difference(self.behind(reading))}

    def _own(self, value: Value) -> Array:
        """What nobody hands over: a state of the program, zeros at first, which it overwrites."""
        return self._states.setdefault(value.name or "", np.zeros(value.shape, np.float32))

    def _target(self, reading: NumberedRecording, place: int, memories: Memories) -> Array | None:
        slot = reading.slots[self.outputs[place]]
        if slot not in memories:
            memories[slot] = SlotMemory(slot)
        gone = memories[slot].storage is None and slot not in reading.kept
        return None if gone else memories[slot].array(0, slot.shape)

    def _input(self, reading: NumberedRecording, name: str, memories: Memories, numbers: list[float]) -> Array:
        at, leaves = self._position[name], reading.leaves
        exact = name in self.imported.exact
        if at < len(leaves):
            leaf = leaves[at]
            start, shape, kind = leaf.start, leaf.shape, leaf.kind
            if leaf.number is not None:
                return _bound(of_number(leaf.number), kind, exact)
            assert leaf.slot is not None
            slot = leaf.slot
            assert slot in memories or slot.storage() is not None, (
                "what is read and not written is kept until it is read"
            )
        elif at < len(leaves) + len(self.given):
            slot = reading.slots[self.given[at - len(leaves)]]
            start, shape, kind = 0, slot.shape, slot.kind
        else:
            place = at - len(leaves) - len(self.given)
            value: float | None = numbers[self.classes[place][0]]
            if self.inverted[place]:
                value = inverse(numbers[self.classes[place][0]])
            return _bound(np.asarray(value, np.float32), torch.float32, exact)
        if slot not in memories:
            memories[slot] = SlotMemory(slot)
        return _bound(memories[slot].array(start, shape), kind, exact)


def _bound(array: Array, kind: torch.dtype, exact: bool) -> Array:
    with unnarrowed() if exact else nullcontext():
        return bound(array, kind)[0]


def _store(target: Array, result: Array) -> None:
    if target.__array_interface__["data"][0] != result.__array_interface__["data"][0]:
        stored(target, result)


def _bits(numbers: list[float]) -> list[int]:
    bits: list[int] = np.asarray(numbers, np.float64).view(np.int64).tolist()
    return bits


_RATES = frozenset({"addcdiv", "_foreach_addcdiv", "div", "_foreach_div"})


def base_name(node: RecordedOperator) -> str:
    """`add` of `aten::add_.Tensor`."""
    return node.about.name.removeprefix("aten::").removesuffix("_")


def _of_updates(nodes: Sequence[RecordedOperator]) -> set[int]:
    """Which floats an optimizer computed and will compute anew in the next step: those that it divides by and that
    scale what it adds to parameters, by their places in the optimizers that there are. Others become inputs when they
    change: as constants they are part of an instruction."""
    updates = [node.updates and base_name(node) in _RATES for node in nodes for _ in node.numbers]
    return {i for i, update in enumerate(updates) if update}


@dataclass(eq=False)
class ProgramVariants:
    """The programs of one sequence of operators. open: floats that were seen with several values."""

    name: str
    programs: list[RecordedProgram] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    refused: bool = False

    def program(self, reading: NumberedRecording) -> RecordedProgram:
        """The program for a recording, compiled if there is none."""
        alive, numbers = reading.alive(), reading.numbers()
        bits = _bits(numbers)
        if not self.last:
            self.open = _of_updates(reading.nodes)
        if self.last:
            self.open |= {i for i, (a, b) in enumerate(zip(self.last, bits)) if a != b}
        self.last = bits
        for program in reversed(self.programs):
            if program.fits(alive, bits, numbers):
                return program
        program = RecordedProgram(reading, self.name, alive, numbers, self.open).compile()
        self.programs.append(program)
        return program
