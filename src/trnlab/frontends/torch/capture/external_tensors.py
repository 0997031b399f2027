# SPDX-License-Identifier: Apache-2.0
"""Tensors that a step reads without being given them: from closures, globals, attributes that are no buffers.

While the step is traced each gets a stand-in, made at its first use, which becomes one more input of the program. So
writing to the tensor between steps takes effect, and writing to it within the step is an output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trnlab.errors import Location, UnsupportedOpError
from trnlab.frontends.torch.capture.copies import copy_of
from trnlab.frontends.torch.constant_folding import known_value
from trnlab.frontends.torch.device.dlpack import memory_of
from trnlab.frontends.torch.findings import survey
from trnlab.frontends.torch.findings.locations import RecordLines
from trnlab.frontends.torch.pytorch.dispatcher import (
    functions_not_overridden,
    is_functorchs,
    is_traceable_wrapper_subclass,
    modes_off,
)
from trnlab.frontends.torch.pytorch.fakes import FakeTensor
from trnlab.frontends.torch.sparse import parts as sparse

_T = torch.Tensor
_VALUES = {
    _T.numpy: "numpy",
    _T.tolist: "tolist",
    _T.__array__: "__array__",
    _T.__bool__: "__bool__",
    _T.item: "item",
    _T.__float__: "__float__",
    _T.__int__: "__int__",
    _T.__index__: "__index__",
}
_SHOWN = (_T.__repr__, _T.__format__)
_GRAD, _BACKWARD = _T.grad.__get__, (_T.backward, torch.autograd.backward)  # type: ignore[attr-defined]
_CUTS = (_T.detach, _T.data.__get__)  # type: ignore[attr-defined]


@dataclass
class ExternalTensor:
    """A tensor from outside: `base` is the traced input, `owned` the copy that the step reads and writes."""

    real: Tensor
    base: Tensor
    owned: Tensor
    version: int
    of: tuple[Tensor, int] | None = None  # the sparse tensor that it is a part of, and which
    normalized: bool = False  # as running statistics, a write that PyTorch does not count

    @property
    def written(self) -> bool:
        """Whether the step wrote to it."""
        return self.normalized or self.owned._version > self.version


def is_real(value: Any) -> bool:
    """Whether this is a tensor with data, not one of the tracing's own."""
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
        return False
    if is_traceable_wrapper_subclass(value):  # has what the tensors that it is made of have
        return any(is_real(getattr(value, name)) for name in value.__tensor_flatten__()[0])
    if sparse.is_sparse(value):
        return not sparse.is_traced(value)
    return not is_functorchs(value)


def leaf_like(base: Tensor, requires_grad: bool) -> Tensor:
    """A copy that the step may write to and differentiate by, so that writes never reach the traced inputs."""
    copy = copy_of(base)
    return copy.requires_grad_() if requires_grad else copy


class _Hung:
    """The attributes that Python code has hung on a tensor, while a stand-in has them."""

    def __init__(self, real: Tensor, owned: Tensor) -> None:
        self._real, self._owned = _attributes(real), _attributes(owned)
        self._owned |= {k: v for k, v in self._real.items() if k not in self._owned}
        self._before = dict(self._owned)

    def give_back(self) -> None:
        """What has been set, or is new and none of the tracing's own, is the real tensor's."""
        for key, value in self._owned.items():
            known = self._before.get(key, self)
            if value is not known and (key in self._real or (known is self and not key.startswith("_"))):
                self._real[key] = value
        for key in self._real.keys() & self._before.keys() - self._owned.keys():
            del self._real[key]


def _attributes(tensor: Tensor) -> dict[str, Any]:
    """Those of a plain tensor; of one that is made of others they are its own business."""
    return {} if is_traceable_wrapper_subclass(tensor) else vars(tensor)


class ExternalTensors(TorchFunctionMode):
    """While active, operators get a stand-in for every real tensor.

    stand_ins: those that are known from the start (the batch, parameters, buffers), by the real tensor. `found` are
    all others that were met, `made` those that the step made itself, `read` those whose values Python asked for, with
    the values. `phase` is what is being traced, for messages.
    """

    def __init__(self, stand_ins: Iterable[tuple[Tensor, Tensor]], lines: RecordLines) -> None:
        super().__init__()
        self.lines, self.phase = lines, "the loss function"
        self._known = {id(real): (real, owned) for real, owned in stand_ins}
        self._own = {id(owned): real for real, owned in stand_ins}
        self._hung = [_Hung(real, owned) for real, owned in stand_ins]
        self.found: list[ExternalTensor] = []
        self.read: list[tuple[Tensor, bytes]] = []
        self.made: list[Tensor] = []

    def real_of(self, owned: Any) -> Tensor | None:
        """The tensor that this one stands for."""
        return self._own.get(id(owned))

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _VALUES:
            return self._values(function, args, kwargs)
        if function in _SHOWN and (gathered := survey.active()) is not None:
            gathered.shown(self.where())
            return "a tensor"
        if self.phase == "the loss function" and (function == _GRAD or function in _BACKWARD):
            self._check_gradients(function, args[0])
        if function is torch.ops.aten.lift_fresh.default:  # of a tensor made just now, of NumPy's memory
            self.made.append(args[0])
        if any(map(_holds_real, (*args, *kwargs.values()))):
            cut = function in _CUTS
            args = tuple(self._replaced(a, cut) for a in args)
            kwargs = {k: self._replaced(v, cut) for k, v in kwargs.items()}
        if "_norm" in getattr(function, "__name__", ""):
            self._note_statistics((*args, *kwargs.values()))
        return function(*args, **kwargs)

    def _note_statistics(self, given: tuple[Any, ...]) -> None:
        """Normalization may write to any tensor that it gets and needs no gradient for: the running statistics."""
        tensors = {id(x) for x in given if isinstance(x, Tensor) and not x.requires_grad}
        for found in self.found:
            found.normalized |= id(found.owned) in tensors

    # -- stand-ins --------------------------------------------------------------------------------------------------
    def _replaced(self, value: Any, cut: bool) -> Any:
        if isinstance(value, (list, tuple)) and _holds_real(value):
            items = [self._replaced(v, cut) for v in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return self.stand_in(value, cut) if is_real(value) else value

    def stand_in(self, real: Tensor, cut: bool = False) -> Tensor:
        """What the trace has in the place of `real`. cut: it is about to be detached."""
        if id(real) in self._known:
            return self._known[id(real)][1]
        if real.requires_grad and not real.is_leaf and torch.is_grad_enabled() and not cut:
            raise self._refused(
                "the step reads a tensor that was computed outside of it and requires a gradient",
                "TRN142",
                "compute it inside of the step, or hand it over as x.detach()",
            )
        owned = self._met(real) if real.layout is torch.strided else self._met_in_parts(real)
        self._known[id(real)] = real, owned
        self._own[id(owned)] = real
        self._hung.append(_Hung(real, owned))
        return owned

    def _met(self, real: Tensor, of: tuple[Tensor, int] | None = None) -> Tensor:
        with torch.no_grad():
            base = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=real.device)
            owned = leaf_like(base, real.requires_grad and real.is_leaf)
        self.found.append(ExternalTensor(real, base, owned, owned._version, of))
        return owned

    def _met_in_parts(self, real: Tensor) -> Tensor:
        """A sparse tensor: the inputs are its indices and values."""
        with functions_not_overridden():
            parts = sparse.Opened.of(real)
        parts.leaves = [self._met(leaf, (real, i)) for i, leaf in enumerate(parts.leaves)]
        return parts.closed()

    def give_back(self) -> None:
        """Hang on the tensors what the step has hung on their stand-ins."""
        for hung in self._hung:
            hung.give_back()

    # -- what cannot be traced --------------------------------------------------------------------------------------
    def _values(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Python asks for the values of a tensor: they are known, and guarded, if it is one from outside.

        Those of a tensor that depends on no input are the same in every step.
        """
        tensor = args[0]
        if not is_real(tensor):
            tensor = next((f.real for f in self.found if f.owned is tensor and not f.written), tensor)
        if is_real(tensor) and (id(tensor) not in self._known or any(f.real is tensor for f in self.found)):
            with modes_off():
                self.read.append((tensor, bits(tensor)))
                return function(tensor, *args[1:], **kwargs)
        known = known_value(tensor)
        if known is not None:
            with modes_off():
                return function(known, *args[1:], **kwargs)
        refusal = self._refused(
            f"{self.phase} asks for the values of a tensor ({_VALUES[function]}) while the step is being captured",
            "TRN204",
            "keep .item(), .numpy() and conditions on tensors out of the step; see torch.where",
        )
        gathered = survey.active()
        if gathered is None or self.phase not in ("the loss function", "the backward pass"):
            raise refusal  # of an optimizer that counts in Python: there is a way for those
        gathered.asked(_VALUES[function], self.phase, refusal.where)
        return survey.standing_for(_VALUES[function], tensor)

    def _check_gradients(self, function: Any, tensor: Any) -> None:
        if function == _GRAD and id(tensor) not in self._own and id(tensor) not in self._known:
            return
        what, remedy = "calls backward() itself", "return the loss; the step computes its gradients"
        if function == _GRAD:
            what = "reads .grad of a parameter"
            remedy = "compute gradients with torch.autograd.grad, or keep what you need of them in a buffer"
        raise self._refused(f"the loss function {what}", "TRN143", remedy)

    def _refused(self, what: str, code: str, remedy: str) -> UnsupportedOpError:
        return UnsupportedOpError(what, code=code, where=self.where(), remedy=remedy)

    def where(self) -> Location | None:
        """The user's line that is executing."""
        return self.lines.here()


def _holds_real(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_real, value))
    return is_real(value)


def bits(tensor: Any) -> bytes:
    """All values of a tensor."""
    return memory_of(tensor).tobytes() if isinstance(tensor, Tensor) else b""


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two real tensors have a byte of storage in common."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != 0
