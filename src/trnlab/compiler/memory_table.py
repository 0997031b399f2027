# SPDX-License-Identifier: Apache-2.0
"""The tensors of a program that is being assembled: which values lie in memory, as what, and where."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from trnlab.compiler.analysis.strided import is_filled
from trnlab.compiler.fusing.fusion import Partition
from trnlab.compiler.fusing.groups import FusionGroup, GroupKind, ValueClass
from trnlab.compiler.fusing.packing import Unit
from trnlab.compiler.fusing.signature import ports_of
from trnlab.compiler.in_place import _reads_in_step
from trnlab.compiler.placement import lifetimes_of, place
from trnlab.compiler.residence import Residence
from trnlab.compiler.rewriting.canonical import updates_of
from trnlab.graph.ir import Graph, Op, Value
from trnlab.kernels.residence import Home
from trnlab.program import Buffer, Call, ProgramTensor, Routine

Array = np.ndarray[Any, Any]


class MemoryTable:
    """Values of a partitioned graph and the tensors that hold them."""

    graph: Graph
    part: Partition
    groups: list[FusionGroup]
    probed: set[Value]
    stores_of: dict[FusionGroup, set[Value]]
    code: list[Routine]

    def _name_nothing(self) -> None:
        """No value has a tensor yet."""
        self.tensors: list[ProgramTensor] = []
        self.tensor_of: dict[Value, int] = {}
        self.constants: dict[int, Array] = {}
        self.residence: Residence | None = None

    def _home(self, value: Value) -> Home | None:
        """Where a value stays in SBUF, if it does."""
        return self.residence.homes.get(value) if self.residence is not None else None

    def _own_memory(self, buffer: Buffer | ProgramTensor, data: Array | None) -> int:
        """A tensor that only one call knows: a constant of its own, or scratch."""
        index = len(self.tensors)
        kind = "temp" if data is None else "constant"
        self.tensors.append(ProgramTensor(index, buffer.name, buffer.shape, buffer.dtype, buffer.nbytes, kind))
        if data is not None:
            self.constants[index] = data
        return index

    def _storable(self, value: Value) -> bool:
        """Whether a group computes the value in a form that it can write out: not one element among many."""
        group = self.part.owner.get(value)
        return group is not None and (
            value.type.size == group.size or group.classes.get(value) is not ValueClass.SCALAR
        )

    def _stored_values(self) -> set[Value]:
        """Values that must be in memory: read by another group, or by the user."""
        stored = {v for v in self.graph.outputs if v in self.part.owner}
        whole = (GroupKind.CALL, GroupKind.LOOP, GroupKind.COLLECTIVE)
        stored.update(v for g in self.groups if g.kind in whole for v in g.anchor.results)
        for group in self.groups:
            for op in group.ops:
                for value in op.operands:
                    root = self.part.root(value)
                    owner = self.part.owner.get(root)
                    if owner is not None and not self.part.inside(value, group):
                        stored.add(root)
        return stored

    def _name_tensors(self, units: list[Unit]) -> None:
        for value in self.graph.inputs:
            self._tensor(value, "input")
        in_place = self._in_place(units)
        for op in (g.anchor for g in self.groups if g.kind is GroupKind.SCATTER):
            if op.name == "trn.put_rows":
                op.attrs["copied"] = op.result not in in_place
        for value in self.graph.outputs:
            if value in self.tensor_of:
                continue
            if value in in_place:
                self.tensor_of[value] = self.tensor_of[in_place[value]]
            else:
                self._tensor(value, "output")
        for group in self.groups:
            if group.kind in (GroupKind.CALL, GroupKind.LOOP):
                self._share_overwritten(group.anchor)
        for unit in units:
            for group in unit:
                for value in ports_of(group, self.part, self.stores_of[group]):
                    if value not in self.tensor_of and self._home(value) is None:
                        self._constant(value) if value.op and value.op.name in ("constant", "iota") else self._tensor(
                            value, "output" if value in self.probed else "temp"
                        )

    def _share_overwritten(self, op: Op) -> None:
        """A result that starts as an operand is that operand's memory: of a copy, which nobody else reads."""
        for result, operand in updates_of(op).items():
            value = op.results[result]
            if value not in self.tensor_of:
                self._tensor(value, "temp")
            self.tensor_of[self.part.root(op.operands[operand])] = self.tensor_of[value]

    def _tensor(self, value: Value, kind: str) -> int:
        index = len(self.tensors)
        shape = memory_shape(value)
        nbytes = prod(shape) * value.dtype.itemsize
        self.tensors.append(ProgramTensor(index, value.name or f"t{index}", shape, value.dtype, nbytes, kind))
        self.tensor_of[value] = index
        return index

    def _constant(self, value: Value) -> None:
        assert value.op is not None
        attrs = value.op.attrs
        if value.op.name == "iota":
            data = np.arange(value.shape[attrs["iota_dimension"]]).astype(value.dtype.numpy)
            index = len(self.tensors)
            self.tensors.append(ProgramTensor(index, "iota", data.shape, value.dtype, data.nbytes, "constant"))
            self.tensor_of[value] = index
        else:
            data = np.ascontiguousarray(attrs["value"]).astype(value.dtype.numpy).reshape(memory_shape(value))
            index = self._tensor(value, "constant")
        self.constants[index] = data

    def _in_place(self, units: list[Unit]) -> dict[Value, Value]:
        """Outputs that may be written straight into the input they replace: nobody reads the old value afterwards."""
        position = {g: i for i, unit in enumerate(units) for g in unit}
        last_read: dict[Value, int] = {}
        readers: dict[Value, set[FusionGroup]] = {}
        for group in self.groups:
            for op in group.ops:
                for value in op.operands:
                    root = self.part.root(value)
                    last_read[root] = max(last_read.get(root, -1), position[group])
                    readers.setdefault(root, set()).add(group)
        found = {}
        for out, source in self.graph.aliases.items():
            value, old = self.graph.outputs[out], self.graph.inputs[source]
            writer = self.part.owner.get(value)
            if writer is None or value.type != old.type:
                continue
            before = all(position[g] < position[writer] or g is writer for g in readers.get(old, ()))
            apart = writer not in readers.get(old, ())
            if before and (apart or _reads_in_step(writer, value, old, self.part)):
                found[value] = old
        return found

    def _place(self, calls: list[Call]) -> int:
        offsets, peak = place(lifetimes_of([t for t in self.tensors if t.kind == "temp"], calls, self.code))
        self.tensors = [replace(t, address=offsets[t.id]) if t.id in offsets else t for t in self.tensors]
        return peak


def memory_shape(value: Value) -> tuple[int, ...]:
    """The shape of a value as memory holds it: of an iota its one dimension, of one number throughout that number."""
    if value.op is not None and value.op.name == "iota":
        return (value.shape[value.op.attrs["iota_dimension"]],)
    return (1,) if is_filled(value) and value.type.size else value.shape or (1,)
