# SPDX-License-Identifier: Apache-2.0
"""Errors of Python that are on their way through PyTorch's backward pass, which is C++.

A kernel in Python that fails there leaves its error pending in the interpreter until C++ is left. On the way PyTorch
asks the device for its kind (`slot.DeviceGuard`), a call of Python's, which may find none pending. So it is taken
away, and raised where the backward pass was asked for, which by then has lost it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import wraps
from typing import Any

# With an error pending hardly anything can be called: the function and its arguments are made beforehand.
take = ctypes.pythonapi["PyErr_Fetch"]  # take(*PLACES), whether there is one or not
take.restype = None
_kind, _value, _trace = ctypes.py_object(), ctypes.py_object(), ctypes.py_object()
PLACES = tuple(ctypes.byref(place) for place in (_kind, _value, _trace))
_taken: list[BaseException] = []


def keep() -> None:
    """Keep what `take` has found, if it found any."""
    if not _kind:
        return
    kind, value, trace = map(_out_of, (_kind, _value, _trace))
    error = value if isinstance(value, BaseException) else kind(value)
    _taken[:] = [error.with_traceback(trace)]


def _out_of(place: ctypes.py_object[Any]) -> Any:
    """The object at a place, which is empty afterwards."""
    if not place:
        return None
    found = place.value
    ctypes.pythonapi.Py_DecRef(place)  # `take` has counted one for the place
    ctypes.memset(ctypes.addressof(place), 0, ctypes.sizeof(place))
    return found


def raised_again(run: Callable[..., Any]) -> Callable[..., Any]:
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
