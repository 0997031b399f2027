# SPDX-License-Identifier: Apache-2.0
"""Which step of training a script is in, and when it has done enough.

A step of `compile_step` tells its loss. In other scripts a step is known by its `backward()`: the loss is what that
is called on, and the step is over when the next forward pass, or the next `backward()`, begins. Where operators are
recorded, the loss is read after the step, which would be cut in two before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_RECORDED = ("step", "operators")  # how programs of recorded operators are called


class StepLimitReached(BaseException):
    """The script has done as many steps as were asked for."""


class StepCounter:
    """Counts the steps of one run of a script; raises `StepLimitReached` after `limit` of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.losses: list[float] = []
        self._updating = False
        self._paused = False
        self._latest: Tensor | None = None  # the loss that is the last of `losses`, and not read yet
        self._stepped = False  # whether an optimizer has stepped since

    @property
    def number(self) -> int:
        """The step that is being made, counted from one."""
        return max(len(self.losses) + (not self._updating), 1)

    def starts(self, graph: str) -> None:
        """A program called `graph` is about to run."""
        if graph.startswith("forward") or (self._stepped and graph.startswith(_RECORDED)):
            self._updating = self._stepped = False
            self._stop()

    def stepped(self) -> None:
        """An optimizer has made its step: recorded programs from here on are of the next."""
        self._stepped = True

    def _read(self) -> None:
        if self._latest is not None:
            loss, self._latest = self._latest, None
            self.losses[-1] = float(loss)

    def done(self, loss: float) -> None:
        """A whole step is over; of one that `backward()` has counted the script tells the loss again."""
        self._read()
        if not self._updating:
            self.losses.append(loss)
        self._updating = False
        self._stop()

    def _stop(self) -> None:
        if len(self.losses) >= self.limit:
            raise StepLimitReached

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block no `backward()` is a step."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block `loss.backward()` counts as a step."""
        original: Callable[..., Any] = Tensor.backward

        def backward(loss: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._paused:  # a trial, or PyTorch's own second call of the same
                return original(loss, *args, **kwargs)
            self._read()
            self._stop()
            self.losses.append(float("nan"))
            self._latest = loss.detach() if loss.numel() == 1 else None
            self._updating, self._stepped = True, False
            with self.paused():
                return original(loss, *args, **kwargs)

        Tensor.backward = torch.compiler.disable(backward)  # type: ignore[method-assign]
        try:
            yield
        finally:
            Tensor.backward = original  # type: ignore[method-assign]
            self._read()
