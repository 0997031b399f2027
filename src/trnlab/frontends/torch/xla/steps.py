# SPDX-License-Identifier: Apache-2.0
"""Where a step ends: what was recorded on the device is run, and closures of the step are called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from trnlab.frontends.torch import recording

_closures = threading.local()


def _waiting() -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    if not hasattr(_closures, "waiting"):
        _closures.waiting = []
    waiting: list[tuple[Callable[..., Any], tuple[Any, ...]]] = _closures.waiting
    return waiting


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """The end of a step: what was recorded is computed, then closures that were added are called, in their order."""
    recording.flush()
    waiting = _waiting()
    called, waiting[:] = list(waiting), []
    for closure, args in called:
        closure(*args)


def wait_device_ops(devices: Any = ()) -> None:
    """Nothing waits once a step is marked."""
    mark_step(wait=True)


def add_step_closure(closure: Callable[..., Any], args: tuple[Any, ...] = (), run_async: bool = False) -> None:
    """Call it at the end of the step, as scripts expect that print what the step computed."""
    _waiting().append((closure, tuple(args)))
