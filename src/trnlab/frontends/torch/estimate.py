# SPDX-License-Identifier: Apache-2.0
"""How long a step would take the chip, before deciding how to compile it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trnlab.frontends.common import engine
from trnlab.runtime import session
from trnlab.runtime.executable import Executable
from trnlab.units import PS_PER_S


class _Tally:
    """Stands where a session keeps its run: adds up the simulated time of what is executed."""

    def __init__(self, script: Path | str) -> None:
        self.script, self.ps = script, 0
        self.executables: dict[str, Executable] = {}  # kernels that the step calls by themselves look here

    def begins(self) -> None:
        """Nothing is rehearsed here."""

    def executed(self, executable: Executable, beside: int = 0) -> None:
        self.executables[executable.key] = executable
        self.ps += executable.timeline.total

    def waited(self, seconds: float) -> None:
        """Nothing: the step is a trial."""

    def reads(self, record: Callable[[float | None], dict[str, Any]]) -> None:
        """Nothing: the step is a trial."""

    def updated(self) -> None:
        """Nothing: the step is a trial."""

    def step(self, loss: float, tokens: int = 0) -> None:
        """Nothing: the step is a trial."""


def step_time(step: Callable[..., Any], *batch: Any) -> float:
    """Seconds that `step(*batch)` takes the simulated chip, all programs that it runs added up.

    The step is executed once, so let it work on copies of model and optimizer. What it compiles stays compiled; its
    steps, instructions and host operators do not count in the run. Functions of `torch.compile` start afresh then.
    """
    watched = getattr(engine.current(), "step_time", None)
    return watched(lambda: _measured(step, batch)) if watched is not None else _measured(step, batch)


def _measured(step: Callable[..., Any], batch: Sequence[Any]) -> float:
    now = session.current()
    tally = _Tally(now.run.script if now.run is not None else "")
    trial = replace(now, run=tally, counters=session.Counters(), compiled={}, core=None)
    with session.activate(trial):
        step(*batch)
    torch.compiler.reset()
    return tally.ps / PS_PER_S
