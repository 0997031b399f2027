# SPDX-License-Identifier: Apache-2.0
"""The engine of a walk: it hands what would be compiled to the walk."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from trnlab.errors import TrnlabError
from trnlab.findings import WARNING
from trnlab.frontends.common.engine import Counted
from trnlab.frontends.torch.check.recorded import RecordingEngine
from trnlab.frontends.torch.check.shapes import TracedDevice
from trnlab.frontends.torch.check.unmaterialized import Unwritten, values_kept
from trnlab.frontends.torch.pytorch import pytree
from trnlab.graph.ir import Graph
from trnlab.runtime import device
from trnlab.runtime.session import current
from trnlab.runtime.step_cost import StepPrograms


class TraceEngine(RecordingEngine, TracedDevice):
    """Stands for the chip while a script is followed."""

    unwritten: Unwritten

    def step_time(self, measured: Callable[[], float]) -> float:
        """The time of the graphs that the step runs, for the first target; infinite for what does not compile."""
        graphs = self.walk.trial(measured)  # type: ignore[attr-defined]
        now = current()
        with values_kept():
            try:
                return StepPrograms([(device.obtain(g, now), 1) for g in graphs]).seconds
            except TrnlabError:
                return math.inf

    def follow(
        self, how: str, graphs: Sequence[Graph], kinds: Mapping[str, str], learns: bool, counted: Counted = (0, "")
    ) -> None:
        """See `TracingEngine`."""
        self.walk.of_another(how, graphs, kinds, learns, counted)  # type: ignore[attr-defined]

    def left(self, name: str, error: TrnlabError) -> None:
        """See `TracingEngine`."""
        self.walk.survey.note(  # type: ignore[attr-defined]
            error.code,
            error.what.splitlines()[0],
            error.where,
            why=f"{name!r} runs on the host because of that",
            do=error.remedy or "",
            severity=WARNING,
            subject=name,
        )

    def train_step(self, step: Any, batch: Sequence[Any]) -> Any:
        """See `TracedDevice`."""
        walk: Any = self.walk
        leaves = pytree.tree_leaves(batch)
        walk.begun(tuple(f"{str(x.dtype)[6:]}{list(x.shape)}" for x in leaves if isinstance(x, Tensor)))
        with walk.aside():
            return super().train_step(step, batch)
