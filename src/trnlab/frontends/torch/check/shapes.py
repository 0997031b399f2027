# SPDX-License-Identifier: Apache-2.0
"""The engine of a check: graphs are kept instead of compiled, and what they return has shapes and no values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from trnlab.frontends.common.captured import Role
from trnlab.frontends.common.engine import prepared_of, use
from trnlab.frontends.torch import recording
from trnlab.frontends.torch.capture.step_capture import CapturedStep, LossOutput
from trnlab.frontends.torch.capture.subject import prepare
from trnlab.frontends.torch.check.unmaterialized import like, unwritten, values_kept
from trnlab.frontends.torch.device.dlpack import as_host
from trnlab.frontends.torch.findings.locations import here, parse
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.step import TrainStep, learned_from
from trnlab.graph.ir import Graph


class DeviceObserver(Protocol):
    """Who is told what happens."""

    def executed(self, graph: Graph, inputs: Mapping[str, Any]) -> None:
        """A graph ran, on these tensors by the names of its inputs."""

    def captured(self, step: CapturedStep) -> None:
        """A whole step was captured."""

    def again(self, reason: str | None, shapes: tuple[str, ...], where: Any) -> None:
        """A step had to be captured once more."""

    def step_done(self, per_step: int, counted: str) -> None:
        """A training step is over."""


class Shapes:
    """Stands for the chip within a step of `compile_step`."""

    def __init__(self, walk: DeviceObserver) -> None:
        self.walk = walk

    def compile(self, graph: Graph, frozen: Sequence[int] = ()) -> Callable[..., Any]:
        """See `GraphEngine`; what it returns computes nothing."""
        prepared = prepared_of(graph, frozen)

        def run(inputs: Mapping[str, Any]) -> list[Any]:
            self.walk.executed(graph if prepared is None else prepared.each, inputs)
            return []

        return run

    def step_done(self, loss: float, tokens: int) -> None:
        """See `GraphEngine`."""
        self.walk.step_done(tokens, "tokens" if tokens else "")

    def stand_in(self, fake: Tensor) -> Tensor:
        """What stands for a result of a graph."""
        return like(fake)

    def captured_again(self, step: TrainStep, reason: str | None, leaves: Sequence[Any]) -> None:
        """See `TrainStep`."""
        shapes = tuple(f"{str(x.dtype)[6:]}{list(x.shape)}" for x in leaves if isinstance(x, Tensor))
        self.walk.again(reason, shapes, parse(here(sys._getframe(1)) or ""))

    def results(
        self,
        step: TrainStep,
        captured: CapturedStep,
        parameters: Sequence[Tensor],
        leaves: Sequence[Any],
        tensors: Sequence[Tensor],
    ) -> dict[Role, Tensor]:
        """What a captured step returns: tensors without values; its counts of steps go on."""
        self.walk.captured(captured)
        made: dict[Role, Tensor] = {}
        for i, role in enumerate(captured.outputs):
            if role.kind == "count":
                for place in role.place:
                    as_host(step.optimizer.state[parameters[place]]["step"]).add_(1)
            elif i not in captured.graph.aliases:
                shape = captured.graph.outputs[i].shape
                made[role] = unwritten(shape, captured.strides[i], captured.kinds[i], "neuron")
        for leaf in pytree.tree_leaves(captured.result):
            if isinstance(leaf, LossOutput) and leaf.role.kind not in ("batch", "parameter", "buffer"):
                made.setdefault(leaf.role, unwritten((), (), torch.float32, "neuron"))
        for role, tensor in made.items():
            if role.kind == "state":
                step.optimizer.state[parameters[role.place[0]]][role.place[1]] = tensor
            elif role.kind == "loss":
                as_host(tensor).fill_(1)
        captured.dependencies.apply([t for r, t in made.items() if r.kind == "kept"], leaves, tensors)
        return made


class TracedDevice(Shapes):
    """Stands for the chip outside of steps of `compile_step`."""

    def train_step(self, step: TrainStep, batch: Sequence[Any]) -> Any:
        """Capture a step as ever, with operators that compute as ever."""
        prepare(step.optimizer)
        recording.flush()  # what was recorded before is no part of it
        inner = _Step(self.walk, *learned_from(pytree.tree_leaves(batch)))
        with values_kept(), use(inner):
            return step(*batch)


class _Step(Shapes):
    """Within one step; knows what it learns from."""

    def __init__(self, walk: DeviceObserver, per_step: int, counted: str) -> None:
        super().__init__(walk)
        self._per_step, self._counted = per_step, counted

    def step_done(self, loss: float, tokens: int) -> None:
        """See `GraphEngine`."""
        self.walk.step_done(self._per_step, self._counted)
