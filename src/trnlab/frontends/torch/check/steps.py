# SPDX-License-Identifier: Apache-2.0
"""What one step of a script ran, as a walk writes it down."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from trnlab.errors import Location
from trnlab.frontends.torch.capture.step_capture import CapturedStep
from trnlab.frontends.torch.check.pipelines import StageRuns
from trnlab.frontends.torch.check.recorded import Inputs
from trnlab.frontends.torch.data import Loader
from trnlab.graph.ir import Graph
from trnlab.runtime.communication import UntimedCollective


@dataclass
class TracedStep:
    """What one training step ran: graphs in order, and operators on the host."""

    graphs: list[Graph] = field(default_factory=list)
    kinds: dict[Graph, dict[str, str]] = field(default_factory=dict)  # of inputs that stay on the device
    seen: list[Any] = field(default_factory=list)  # inputs of its graphs, while it goes on
    captured: CapturedStep | None = None
    host: Counter[str] = field(default_factory=Counter)
    host_places: Counter[Location] = field(default_factory=Counter)
    exchanged: list[UntimedCollective] = field(default_factory=list)  # exchanged with other ranks outside of graphs
    passes: dict[tuple[int, bool], StageRuns] = field(default_factory=dict)  # of a pipeline, by stage and direction
    per_step: int = 0
    counted: str = ""
    read: Counter[Loader] = field(default_factory=Counter)  # batches of each data set
    learns: bool = False  # whether `loss.backward()` was called
    how: str = ""  # what of another framework compiled its graphs
    inputs: dict[Graph, Inputs] = field(default_factory=dict)  # of recorded programs
    cuts: list[tuple[Graph, Location | None]] = field(default_factory=list)  # these, and who asked for each
    drawn: Counter[str] = field(default_factory=Counter)  # random numbers that are their inputs
