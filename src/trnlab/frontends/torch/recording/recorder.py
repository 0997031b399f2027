# SPDX-License-Identifier: Apache-2.0
"""Operators written down instead of run: what they are, on which memory, and what will be needed of them.

Results get memory at once, which nobody has touched and which costs nothing, and stay without values until somebody
needs one. Then all that was recorded is computed together; see `computing`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from trnlab.frontends.torch.device.allocations import Known, PendingRecording, keep
from trnlab.frontends.torch.device.dlpack import as_neuron, is_shared
from trnlab.frontends.torch.device.types import has_format
from trnlab.frontends.torch.geometry import TensorMeta, form_of, meet
from trnlab.frontends.torch.pytorch.dispatcher import AutoDispatchBelowAutograd
from trnlab.frontends.torch.pytorch.tensors import node_of_backward, uses_of_storage
from trnlab.frontends.torch.recording.forms import OperatorForm, make_room, results_of
from trnlab.frontends.torch.recording.indices import MASKS, chooses_nothing
from trnlab.frontends.torch.recording.operators import OperatorSchema, instead, is_factor, operator
from trnlab.frontends.torch.recording.places import Places

NOT_RECORDED = object()
LONGEST = 50_000  # operators of one recording
_WRITES_THERE = torch.ops.aten.index_put_.default
_CHOOSING = frozenset({"aten::index", "aten::_unsafe_index"})
_NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}  # numbers of the host in our formats
_PARAMETER = torch.nn.Parameter
_CPU, _KINDS = torch.device("cpu"), (Tensor, _PARAMETER)


class Slot:
    """A storage that the recording has met. fresh: made by it; `held` keeps another one. written: by an operator of
    the recording; until then its memory is what the recording reads. learns: whether a parameter has it."""

    __slots__ = ("fresh", "held", "key", "kind", "learns", "nbytes", "shape", "weak", "written")

    def __init__(self, storage: torch.UntypedStorage, kind: torch.dtype, shape: tuple[int, ...], fresh: bool) -> None:
        self.weak, self.key, self.nbytes = StorageWeakRef(storage), storage._cdata, storage.nbytes()
        self.kind, self.shape, self.fresh, self.written, self.learns = kind, shape, fresh, False, False
        self.held = None if fresh else storage

    def seen(self) -> bool:
        """Whether anybody besides the recording still has the memory."""
        if self.held is None:
            return not self.weak.expired()
        return uses_of_storage(self.key) > 1

    def storage(self) -> torch.UntypedStorage | None:
        """The storage, None where it is gone."""
        if self.held is not None:
            return self.held
        found: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self.weak.cdata)
        return found

    def computed(self) -> None:
        """Its memory counts from now on, if somebody has it."""
        storage = self.storage() if self.fresh else None
        if storage is not None:
            keep(self.key, Known(self.weak, storage.data_ptr(), self.nbytes, self.kind))


class HostNumber:
    """A number of the host that operators read, as it was then: a tensor without dimensions, of a complex number of
    its two parts."""

    __slots__ = ("value",)

    def __init__(self, value: Tensor) -> None:
        self.value = value


Ref = tuple[Slot | HostNumber, TensorMeta, int]  # and the offset, in elements of the slot


@dataclass(slots=True)
class RecordedOperator:
    """One operator."""

    about: OperatorSchema
    made: OperatorForm  # what is known of its results
    refs: list[Ref]  # its tensors in order
    results: list[Ref]
    numbers: list[float]  # its floats that may be inputs
    updates: bool  # whether an optimizer called it
    where: str | None = None  # the user's line, an entry of a formatted stack
    grad: bool = False  # whether autograd listened
    backward: bool = False  # whether autograd called it


@dataclass(slots=True)
class _Arguments:
    key: list[Hashable] = field(default_factory=list)
    refs: list[Ref] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    written: list[int] = field(default_factory=list)  # places in `refs`


class ImpossibleError(Exception):
    """The operator cannot be recorded."""


class OperatorRecorder:
    """What was recorded since the last time that it was computed."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tentative: list[int] = []  # keys of slots that are new with the operator which is recorded now
        self.slots: dict[int, Slot] = {}
        self.nodes: list[RecordedOperator] = []
        self.places, self.lines = Places(), False  # whether lines are noted
        self.room: Callable[[TensorMeta], Tensor] = _room  # memory for results
        self.in_optimizer = False  # whether an optimizer makes its step
        self.ended = False  # whether the recording ends with an optimizer's step
        self.at_once = False  # whether the host may read or write what it touches without asking
        self.computing = False  # whether what was recorded is computed now
        self.lost: list[tuple[StorageWeakRef, BaseException]] = []  # results that never got values, and why

    def clear(self) -> tuple[list[RecordedOperator], dict[int, Slot]]:
        """Begin anew; returns what there was."""
        nodes, slots = self.nodes, self.slots
        self.nodes, self.slots, self.at_once = [], {}, False
        return nodes, slots

    def pending(self) -> PendingRecording:
        """What is to be computed, and lies in memory that statistics do not know of, or only here."""
        with self.lock:
            slots = [s for s in self.slots.values() if s.written]
            seen = {id(s) for s in slots if s.seen()}
        results = {s.key: (s.nbytes, s.kind) for s in slots if s.fresh and id(s) in seen}
        return PendingRecording({s.key for s in slots if id(s) not in seen}, results)

    def _updates(self) -> bool:
        """Whether an optimizer updates now: what a closure of its computes is of the model."""
        return self.in_optimizer and not torch.is_grad_enabled()

    # -- what failed -------------------------------------------------------------------------------------------------
    def lose(
        self, nodes: Sequence[RecordedOperator], computed: Sequence[RecordedOperator], error: BaseException
    ) -> None:
        """Those of these operators that are not `computed` failed: whoever wants their results hears why."""
        done = {id(ref[0]) for node in computed for ref in (*node.refs, *node.results)}
        slots = [ref[0] for node in nodes for ref in (*node.refs, *node.results)]
        if not isinstance(error, Exception):
            error = RuntimeError(f"this was not computed: {type(error).__name__} came in between")
        self.lost = [(weak, why) for weak, why in self.lost if not weak.expired()]
        lost = {s for s in slots if isinstance(s, Slot) and s.fresh and id(s) not in done}
        self.lost += [(s.weak, error) for s in lost if not s.weak.expired()]

    def check(self, storage: torch.UntypedStorage) -> None:
        """Raise what kept a storage from getting values."""
        for weak, error in self.lost:
            if weak.cdata == storage._cdata:
                raise error

    # -- looking up --------------------------------------------------------------------------------------------------
    def slot_of(self, tensor: Tensor) -> Slot | None:
        """The slot of a tensor's storage, None where the recording has not met it."""
        return self.slots.get(tensor.untyped_storage()._cdata)

    def _ref(self, tensor: Tensor, form: TensorMeta, is_out: bool) -> Ref:
        storage, lies = tensor.untyped_storage(), form.memory
        slot = self.slots.get(storage._cdata)
        if slot is None:
            whole = lies.dense and lies.size * lies.dtype.itemsize == storage.nbytes()
            shape = lies.packed if whole else (storage.nbytes() // lies.dtype.itemsize,)
            slot = Slot(storage, lies.dtype, shape, is_out and whole)
            self.slots[slot.key] = slot
            self.at_once = self.at_once or is_shared(storage)
            if self.lost:
                self.check(storage)
            self.tentative.append(slot.key)
        elif slot.kind is not lies.dtype:
            raise ImpossibleError
        slot.learns = slot.learns or type(tensor) is _PARAMETER or type(tensor._base) is _PARAMETER
        return slot, form, tensor.storage_offset() * (form.dtype.itemsize // lies.dtype.itemsize)

    # -- writing down ------------------------------------------------------------------------------------------------
    def record(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The results of an operator, to be computed later; `NOT_RECORDED` where it has to be computed now."""
        op, args = instead(op, args)
        args = [self._resolved(x) for x in args]
        if op is _WRITES_THERE and chooses_nothing(*args[:3]):
            return args[0]
        about = operator(op)
        if not about.recordable:
            return NOT_RECORDED
        with self.lock:
            self.tentative.clear()
            try:
                if about.outs:
                    make_room(about, args, kwargs)
                given = self._arguments(about, args, kwargs)
                made = results_of(about, tuple(given.key), args, kwargs, given.tensors) if given.refs else None
                if made is not None:
                    return self._written_down(about, made, given, args, kwargs)
            except ImpossibleError:
                pass
            # The host reads and writes these now, and no recorded one knows them: they are memory like any other.
            for key in self.tentative:
                del self.slots[key]
            return NOT_RECORDED

    def _resolved(self, x: Any) -> Any:
        """In the place of a tensor that PyTorch says to be a conjugate, or negative, one that has the values."""
        if not isinstance(x, Tensor) or not (x.is_conj() or x.is_neg()):
            return x
        aten = torch.ops.aten
        with AutoDispatchBelowAutograd():
            op, plain = (aten._conj_physical.default, x._conj()) if x.is_conj() else (aten.neg.default, x._neg_view())
        found = self.record(op, (plain,), {})
        return x if found is NOT_RECORDED else found

    def _arguments(self, about: OperatorSchema, args: Sequence[Any], kwargs: dict[str, Any]) -> _Arguments:
        given = _Arguments()
        given.key.append(about.number)
        given.key.append(torch.get_default_dtype())  # what integers become in a division
        for name, value in zip(about.names, args):
            self._argument(about, name, value, given)
        for name, value in kwargs.items():
            given.key.append(name)
            self._argument(about, name, value, given)
        if given.written and _clash(about, given):
            raise ImpossibleError
        return given

    def _argument(self, about: OperatorSchema, name: str, value: Any, given: _Arguments) -> None:
        if isinstance(value, Tensor):
            self._tensor(about, value, given, name in about.written, name in about.outs)
        elif isinstance(value, (list, tuple)):
            given.key.append(-len(value) - 1)
            for v in value:
                self._argument(about, name, v, given)
        elif type(value) in (float, int) and is_factor(about, name, value, given.tensors):
            given.numbers.append(float(value))
            given.key.append("factor")
        elif type(value) is float:
            given.key.append(value.hex())
        elif type(value) is complex:
            given.key.append((value.real.hex(), value.imag.hex()))
        elif isinstance(value, torch.Generator):
            raise ImpossibleError
        else:
            given.key.append((type(value), value))

    def _tensor(self, about: OperatorSchema, tensor: Tensor, given: _Arguments, written: bool, is_out: bool) -> None:
        form = form_of(tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.is_cpu:
            if written or form.shape:
                raise ImpossibleError
            value = tensor.detach().resolve_conj().clone()
            lies = form_of((), (), _NARROWER.get(form.dtype, form.dtype))
            value = value.to(lies.dtype)
            given.refs.append((HostNumber(torch.view_as_real(value) if value.is_complex() else value), lies, 0))
            given.key.append("number")
        else:
            if not has_format(form.dtype) or tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor():
                raise ImpossibleError
            if form.dtype in MASKS and about.name in _CHOOSING and given.tensors and not is_out:
                raise ImpossibleError  # how much is chosen depends on values
            if not form.size or (written and form.overlaps) or type(tensor) not in _KINDS:
                raise ImpossibleError
            if written:
                given.written.append(len(given.refs))
            given.refs.append(self._ref(tensor, form, is_out))
        given.key.append(form.number)
        given.tensors.append(tensor)

    def _written_down(
        self,
        about: OperatorSchema,
        made: OperatorForm,
        given: _Arguments,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        new = [self._new(form) for form in made.forms]
        results = [ref for _, ref in new if ref[1].size]
        where = self.places.here() if self.lines else None
        grad = torch.is_grad_enabled()
        updates = self.in_optimizer and not grad  # what a closure of it computes is of the model
        back = node_of_backward() is not None
        node = RecordedOperator(about, made, given.refs, results, given.numbers, updates, where, grad, back)
        named = dict(zip(about.names, args)) | kwargs if about.written else kwargs
        for name in about.written:
            for tensor in _tensors(named.get(name)):
                slot = self.slot_of(tensor)
                if slot is not None:
                    slot.written = True
        self.nodes.append(node)
        return made.returned(iter([t for t, _ in new]), named)

    def _new(self, form: TensorMeta) -> tuple[Tensor, Ref]:
        tensor = as_neuron(self.room(form), counts=False)
        storage, lies = tensor.untyped_storage(), form.memory
        slot = Slot(storage, lies.dtype, lies.packed if lies.dense else (lies.extent,), True)
        slot.written = True
        if form.size:
            self.slots[slot.key] = slot
        return tensor, (slot, form, 0)


def _clash(about: OperatorSchema, given: _Arguments) -> bool:
    """Whether an operator writes to memory that it reads elsewhere: PyTorch refuses that, or goes by the order in
    which its kernel passes over the elements, which nobody wrote down."""
    if len({id(slot) for slot, _, _ in given.refs}) == len(given.refs):
        return False
    for i in given.written:
        slot, form, offset = given.refs[i]
        for j, (other, form2, offset2) in enumerate(given.refs):
            if other is not slot or i == j:
                continue
            may = about.in_place or (about.over_self and j == 0)
            same = may and form is form2 and offset == offset2 and j not in given.written
            if not same and meet(form.memory, offset, form2.memory, offset2):
                return True
    return False


def _room(form: TensorMeta) -> Tensor:
    return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=_CPU)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [v for v in value if isinstance(v, Tensor)] if isinstance(value, (list, tuple)) else []
