# SPDX-License-Identifier: Apache-2.0
"""Where a step ends: what was recorded on the device is run, and closures of the step are called."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import Any

from trnlab.frontends.torch import recording
from trnlab.frontends.torch.xla.names import NoCounterpartError

_closures = threading.local()
_snapshots: list[Callable[[str, int, int], str]] = []
_marked = count()


def _waiting() -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    if not hasattr(_closures, "waiting"):
        _closures.waiting = []
    waiting: list[tuple[Callable[..., Any], tuple[Any, ...]]] = _closures.waiting
    return waiting


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """The end of a step: what was recorded is computed, then closures that were added are called, in their order."""
    _no_snapshot(next(_marked))
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


def register_hlo_snapshot_callback(callback: Callable[[str, int, int], str]) -> None:
    """It is asked in each step, by a name, the number of the device and that of the step, what to write of the step:
    nothing ("") is what can be done here, and another answer ends the step with TRN296."""
    _snapshots[:] = [callback]


def _no_snapshot(step: int) -> None:
    wanted = next((found for callback in _snapshots if (found := callback("step", 0, step))), "")
    if wanted:
        raise NoCounterpartError(
            f"a snapshot of a step's {wanted} as a file of HLO has no counterpart in trnlab",
            remedy="--emit-stablehlo writes what a run compiled, and trnlab verify compares its values",
        )
