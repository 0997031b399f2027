# SPDX-License-Identifier: Apache-2.0
"""Which way an operator outside of compiled code goes: recorded, a program of its own, or the host's.

This is asked from the start of a script on. What records is loaded with the first operator that is recorded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trnlab.errors import UsageError
from trnlab.frontends.torch.device.host_ops import NOT_HERE, ask_first

MODES = ("steps", "operators", "host")
_BARRIERS = "trnlab.frontends.torch.recording.barriers"
_chosen: list[str] = []
OnChip = Callable[[Any, Sequence[Any], dict[str, Any]], Any]


def mode() -> str:
    """What operators outside of compiled code are: "steps" (recorded), "operators" (a program each, once
    `torch.compile` has made one) or "host"."""
    if _chosen:
        return _chosen[-1]
    told = os.environ.get("TRNLAB_EAGER") or MODES[0]
    if told not in MODES:
        raise UsageError(
            "TRNLAB_EAGER is no way to run operators",
            code="TRN282",
            limit=", ".join(MODES),
            got=told,
            remedy="leave it out, or give one of these",
        )
    return told


@contextmanager
def using(way: str) -> Iterator[None]:
    """Within the block operators outside of compiled code run in this way; see `mode`."""
    flush()
    _chosen.append(way)
    try:
        yield
    finally:
        flush()
        _chosen.pop()


def flush(what: str = "operators") -> None:
    """Compute what was recorded. what: the name of a program that is compiled for it."""
    barriers = sys.modules.get(_BARRIERS)
    if barriers is not None:
        barriers.flush(what)


def forget() -> None:
    """Never compute what was recorded."""
    barriers = sys.modules.get(_BARRIERS)
    if barriers is not None:
        barriers.forget()


def run(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The results of an operator, recorded or computed; `NOT_HERE` where the host has to compute it."""
    way = mode()
    if way == "steps" and has_target():
        barriers = _recording()
        if barriers.records():
            return barriers.record(op, args, kwargs)
    return NOT_HERE if way == "host" else _otherwise(op, args, kwargs)


def follows() -> bool:
    """Whether operators are recorded of a script that is followed without values."""
    return _recording().follows() and mode() == MODES[0] and has_target()


def has_target() -> bool:
    """Whether somebody has chosen a target; there may be no session yet."""
    now = _sessions().asked()
    return now is not None and now.chosen


@cache  # an import statement takes long, at each operator
def _recording() -> Any:
    from trnlab.frontends.torch.recording import barriers

    return barriers


@cache
def _sessions() -> Any:
    from trnlab.runtime import session

    return session


def _nowhere(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return NOT_HERE


_otherwise: OnChip = _nowhere


def otherwise(on_chip: OnChip) -> None:
    """Ask `on_chip` for operators that are not recorded."""
    global _otherwise
    _otherwise = on_chip


def _updating(optimizer: Any, args: Any, kwargs: Any) -> None:
    """An optimizer begins its step."""
    barriers = sys.modules.get(_BARRIERS)
    if barriers is not None:
        barriers.updates()


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    """An optimizer made a step outside of compiled code: here a step of the training ends."""
    if torch.compiler.is_compiling():
        return
    barriers = sys.modules.get(_BARRIERS)
    if barriers is not None and barriers.stepped():
        return
    engine = sys.modules.get("trnlab.frontends.common.engine")
    if engine is not None:
        engine.optimizer_stepped()


def register() -> None:
    """Be asked for all operators from here on. Called once."""
    ask_first(run)
    register_optimizer_step_pre_hook(_updating)
    register_optimizer_step_post_hook(_stepped)
