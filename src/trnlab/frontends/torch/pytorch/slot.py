# SPDX-License-Identifier: Apache-2.0
"""PyTorch's slot for a device from outside, filled from Python: PyTorch calls that way in experimental.

A kernel in Python that fails within PyTorch's backward pass, which is C++, leaves its error pending in the
interpreter until C++ is left. On the way PyTorch asks the device for its kind, a call of Python's, which may find
none pending. So it is taken away, and raised where the backward pass was asked for, which by then has lost it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from trnlab.frontends.torch.pytorch.tensors import wrap_backward

_KIND = torch._C._autograd.DeviceType.PrivateUse1
# With an error pending hardly anything can be called: the function and its arguments are made beforehand.
_take = ctypes.pythonapi["PyErr_Fetch"]  # _take(*_PLACES), whether there is one or not
_take.restype = None
_of_kind, _value, _trace = ctypes.py_object(), ctypes.py_object(), ctypes.py_object()
_PLACES = tuple(ctypes.byref(place) for place in (_of_kind, _value, _trace))
_taken: list[BaseException] = []


def _keep() -> None:
    """Keep what `_take` has found, if it found any."""
    if not _of_kind:
        return
    kind, value, trace = map(_out_of, (_of_kind, _value, _trace))
    error = value if isinstance(value, BaseException) else kind(value)
    _taken[:] = [error.with_traceback(trace)]


def _out_of(place: ctypes.py_object[Any]) -> Any:
    """The object at a place, which is empty afterwards."""
    if not place:
        return None
    found = place.value
    ctypes.pythonapi.Py_DecRef(place)  # `_take` has counted one for the place
    ctypes.memset(ctypes.addressof(place), 0, ctypes.sizeof(place))
    return found


def _raised_again(run: Callable[..., Any]) -> Callable[..., Any]:
    """What runs a backward pass, with the errors that it loses."""

    @wraps(run)
    def ran(*args: Any, **kwargs: Any) -> Any:
        _taken.clear()
        try:
            return run(*args, **kwargs)
        except SystemError:
            if not _taken:
                raise
        raise _taken.pop()

    return ran


class DeviceGuard(torch._C._acc.DeviceGuard):
    """The one device, which is always the current one. PyTorch asks for its kind also while an error is pending."""

    def type_(self) -> torch._C._autograd.DeviceType:
        """Which kind of device it is."""
        _take(*_PLACES)  # before anything is called that may fail because of it
        _keep()
        return _KIND


def name_of_device() -> str:
    """What the device in the slot is called; "privateuseone" where the slot is empty."""
    return str(torch._C._get_privateuse1_backend_name())


def fill(name: str, module: ModuleType) -> None:
    """Make `torch.device(name)` known, with memory of the host; module: becomes `torch.<name>`."""
    _setup_privateuseone_for_python_backend(name, backend_module=module, device_guard=DeviceGuard())
    wrap_backward(_raised_again)
