# SPDX-License-Identifier: Apache-2.0
"""The recording of this process, and what ends it: whoever wants the memory of a tensor, a fork, the end."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import llvmlite.binding  # noqa: F401  (its objects end when the process does: after what `_at_exit` computes with them)
import torch
from torch import Tensor

from trnlab.frontends.common import engine
from trnlab.frontends.torch.device import allocations, dlpack
from trnlab.frontends.torch.device.dispatch import untraced
from trnlab.frontends.torch.device.host_ops import NOT_HERE
from trnlab.frontends.torch.findings import provenance
from trnlab.frontends.torch.geometry import TensorMeta
from trnlab.frontends.torch.recording.computing import Computer, busy
from trnlab.frontends.torch.recording.draws import draw
from trnlab.frontends.torch.recording.masks import chosen
from trnlab.frontends.torch.recording.operators import operator
from trnlab.frontends.torch.recording.recorder import LONGEST, NOT_RECORDED, OperatorRecorder, RecordedOperator
from trnlab.frontends.torch.recording.tracing import follower
from trnlab.runtime import session

_BY_MODULE = ("fp8", "mxfp8")  # precisions that tell modules, and gradients, apart
_NEXT_SCALE = torch.ops.aten._amp_update_scale_.default  # of GradScaler.update, which is of the step that has ended

_recorder = OperatorRecorder()
_computer = Computer(_recorder)
_followed = False
allocations.recorded.append(_recorder.pending)


def flush(what: str = "operators") -> None:
    """Compute what was recorded. what: the name of a program that is compiled for it."""
    if not (_recorder.nodes or _recorder.computing):
        return
    with _recorder.lock:
        ended, _recorder.ended = _recorder.ended and bool(_recorder.nodes), False
        _computer.flush("step" if ended else what)
    if ended:
        engine.optimizer_stepped()


def updates() -> None:
    """An optimizer begins its step."""
    _recorder.in_optimizer = True


def stepped() -> bool:
    """An optimizer has ended its step. Returns whether the step is still to be computed.

    It is computed before the next operator is recorded, or when a value is needed. Most scripts give up gradients
    in between (`zero_grad`), which need not be stored then.
    """
    _recorder.in_optimizer = False
    _recorder.ended = bool(_recorder.nodes)
    return _recorder.ended


def records() -> bool:
    """Whether operators can be recorded now: not while something is compiled or captured."""
    if getattr(busy, "now", False):
        return False
    now = engine.current()
    return isinstance(now, (engine.DeviceEngine, engine.InterpreterEngine)) or follower() is not None


def follows() -> bool:
    """Whether operators can be recorded now, of a script that is followed without values."""
    return follower() is not None and records()


def record(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The results of an operator, to be computed later; `NOT_HERE` where the host has to compute it now."""
    if _recorder.ended and op is not _NEXT_SCALE:
        flush()
    if not _recorder.nodes:
        _begin()
    recorded = chosen(op, args, kwargs)
    if recorded is NOT_RECORDED:
        recorded = _recorder.record(op, args, kwargs)
    if recorded is NOT_RECORDED and operator(op).draws:
        recorded = draw(_recorder, _again, op, args, kwargs)
    if recorded is NOT_RECORDED:
        followed = follower()
        return NOT_HERE if followed is None else followed.left_to_host(op, args, kwargs)
    if len(_recorder.nodes) >= LONGEST or _recorder.at_once:
        flush()
    return recorded


def _begin() -> None:
    """The session computes what it records."""
    now = session.current()
    if flush not in now.unfinished:
        now.unfinished.append(flush)
    scaled = now.precision in _BY_MODULE or bool(now.rules.rules)
    _recorder.lines = _followed or _computer.news or scaled or provenance.is_kept()


def forget() -> None:
    """Never compute what was recorded."""
    _recorder.clear()
    _recorder.in_optimizer = _recorder.ended = False


def ends() -> bool:
    """Whether what is recorded is the end of an optimizer's step."""
    return _recorder.ended


def is_recorded(result: Any) -> bool:
    """Whether a tensor waits to be computed."""
    return isinstance(result, Tensor) and bool(_recorder.nodes) and _recorder.slot_of(result) is not None


def latest() -> RecordedOperator | None:
    """The operator that was recorded last, and not computed yet."""
    return _recorder.nodes[-1] if _recorder.nodes else None


@contextmanager
def following(room: Callable[[TensorMeta], Tensor]) -> Iterator[None]:
    """Within the block a script is followed without values: results get `room`, and lines of all operators are known.
    What is not computed at its end never is."""
    global _followed
    flush()
    was, _followed, kept, _recorder.room = _followed, True, _recorder.room, room
    try:
        yield
    finally:
        _followed, _recorder.room = was, kept
        forget()


@contextmanager
def suspended() -> Iterator[None]:
    """Within the block nothing is recorded."""
    was, busy.now = getattr(busy, "now", False), True
    try:
        yield
    finally:
        busy.now = was


def _again(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An operator in the place of another: recorded, or else as the device would run it."""
    recorded = _recorder.record(op, args, kwargs)
    return op(*args, **kwargs) if recorded is NOT_RECORDED else recorded


def _before_host(tensor: Tensor, reads: bool) -> None:
    """Somebody wants the memory of a tensor: to read it only, or to do with it what he likes."""
    if not (_recorder.nodes or _recorder.computing or _recorder.lost):
        return
    with _recorder.lock:  # another thread may be computing it
        slot = _recorder.slot_of(tensor)
        if slot is not None and (slot.written or not reads):
            flush()
        if _recorder.lost:
            _recorder.check(tensor.untyped_storage())


def _addressed(original: Any) -> Any:
    """Asking where memory is: who has the address can read what is there."""

    @wraps(original)
    def data_ptr(self: Any) -> int:
        if (_recorder.nodes or _recorder.computing) and self.device.type == "neuron":
            storage = self.untyped_storage() if isinstance(self, Tensor) else self
            with _recorder.lock:
                if storage._cdata in _recorder.slots:
                    flush()
        address: int = original(self)
        return address

    return data_ptr


def _at_exit() -> None:
    if session.active() is not None:
        flush()


dlpack.before_host = _before_host
Tensor.data_ptr = untraced(_addressed(Tensor.data_ptr))  # type: ignore[method-assign]
torch.UntypedStorage.data_ptr = _addressed(torch.UntypedStorage.data_ptr)  # type: ignore[method-assign]


def _before_fork() -> None:
    _recorder.lock.acquire()  # no other thread is in the middle of an operator, which would not go on in the child
    flush()


def _after_fork() -> None:
    _recorder.lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
atexit.register(_at_exit)
