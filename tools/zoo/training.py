# SPDX-License-Identifier: Apache-2.0
"""A model of the zoo that is trained, on the host or on the simulated chip."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch


class Training:
    """A model that is trained step by step: on the host in one format, or on the simulated chip in one way.

    moved: unless 0, the weights to begin with are off by up to two roundings, in a way that the number stands for.
    """

    def __init__(
        self,
        subject: Any,
        dtype: torch.dtype = torch.float32,
        way: str | None = None,
        moved: int = 0,
        optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.AdamW(p, 1e-3),
    ) -> None:
        self.moved = moved
        self.subject, self.dtype, self.device = subject, dtype, "cpu" if way is None else "neuron"
        self.model = copy.deepcopy(subject.model).to(self.device, dtype)
        self._move()
        self.optimizer = optimizer(self.model.parameters())
        self.step = self._eager(self.model, self.optimizer.step) if way in (None, "eager") else self._compiled(way)

    def losses(self, steps: int, starts: list[Any] | None = None) -> list[float]:
        """Of so many steps. With `starts`, of pairs of steps on one batch, each pair from the state given for it."""
        torch.manual_seed(0)  # what is drawn on the host is the same everywhere
        found = []
        for i in range(steps):
            if starts is not None and i % 2 == 0:
                self._load(starts[i // 2])
            found.append(self._loss(i if starts is None else i // 2))
        return found

    def starts(self, steps: int) -> tuple[list[Any], list[float]]:
        """States before each pair of steps on one batch, and the losses."""
        torch.manual_seed(0)
        states, found = [], []
        for i in range(steps):
            if i % 2 == 0:
                states.append(copy.deepcopy((self.model.state_dict(), self._states())))
            found.append(self._loss(i // 2))
        return states, found

    def _loss(self, seed: int) -> float:
        batch = [x.to(self.dtype) if x.is_floating_point() else x for x in self.subject.batch(seed)]
        return float(self.step(*(x.to(self.device) for x in batch)))

    def _states(self) -> list[dict[str, Any]]:
        return [self.optimizer.state.get(p, {}) for p in self.model.parameters()]

    def _load(self, start: Any) -> None:
        weights, states = start
        self.model.load_state_dict({k: v.to(self.dtype) if v.is_floating_point() else v for k, v in weights.items()})
        self._move()
        for mine, given in zip(self._states(), states):
            for name, value in given.items():
                mine[name].copy_(value)

    def _move(self) -> None:
        generator = torch.Generator().manual_seed(self.moved)
        for p in self.model.parameters() if self.moved else ():
            with torch.no_grad():
                factors = 1 + (2 * torch.rand(p.shape, generator=generator) - 1) * 2**-22
                p.mul_(factors.to(p.device))

    def _eager(self, model: Any, update: Any) -> Any:
        def step(*batch: torch.Tensor) -> torch.Tensor:
            loss = self.subject.loss(model, *batch)
            self.optimizer.zero_grad()
            loss.backward()
            update()
            return loss.detach()

        return step

    def _compiled(self, way: str) -> Any:
        import trnlab.frontends.torch as neuron

        if way != "torch.compile":
            return neuron.compile_step(self.model, self.optimizer, self.subject.loss)
        model = torch.compile(self.model, backend="neuron")
        return self._eager(model, torch.compile(self.optimizer.step, backend="neuron"))


def by_xla() -> Any:
    """Within the block XLA on the CPU runs captured programs."""
    import trnlab.frontends.torch as neuron
    from tools.xla import XlaEngine

    return neuron.use(XlaEngine())
