# SPDX-License-Identifier: Apache-2.0
"""What PyTorch is given for a collective that is on its way.

A callback of a future may ask for collectives itself, as hooks of DistributedDataParallel do. It never runs on a
thread that they need. And all ranks have to ask for them in one order: on GPUs futures are done once their work is
queued, so that a callback runs where `then` is called. Here `then` waits for the collective, and is the same to
scripts; a callback of a transfer between two ranks, for which nobody may wait so early, runs later.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch

from trnlab.frontends.torch.device.dispatch import untraced_methods
from trnlab.frontends.torch.distributed.jobs import PendingCall, aside
from trnlab.frontends.torch.pytorch.collectives import Work
from trnlab.frontends.torch.pytorch.tensors import Future

_TRANSFERS = ("send", "recv")
_works: WeakKeyDictionary[Any, NeuronWork] = WeakKeyDictionary()  # of collectives, by their futures


class Countdown:
    """Calls `at_zero` when `one_less` was called `count` times, from whichever threads."""

    def __init__(self, count: int, at_zero: Callable[[], object]) -> None:
        self._left, self._at_zero, self._lock = count, at_zero, threading.Lock()
        if not count:
            at_zero()

    def one_less(self, _: PendingCall) -> None:
        """One of them is over."""
        with self._lock:
            self._left -= 1
            ended = not self._left
        if ended:
            self._at_zero()


@untraced_methods
class NeuronWork(Work):
    """A handle of one call, or of several that were asked for together. `tensors`: what the call writes; `value`:
    what its future holds, where that is not the tensors themselves."""

    def __init__(self, jobs: list[PendingCall], tensors: Any, value: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.jobs, self.tensors, self.value = jobs, tensors, value
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the tensors hold the results. Raises CollectiveError where that will never be."""
        limit = timeout.total_seconds() if timeout else None
        for job in self.jobs:
            if not job.wait(limit or None):
                raise RuntimeError(f"{job.call.text} at {job.call.site} is not done after {limit} s")
        return True

    def synchronize(self) -> None:
        """The same: the host waits."""
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        return all(job.done for job in self.jobs)

    def is_success(self) -> bool:
        """Whether it is over and well."""
        return all(job.done and job.error is None for job in self.jobs)

    def exception(self) -> BaseException | None:
        """What went wrong, if anything did."""
        return next((job.error for job in self.jobs if job.error is not None), None)

    def result(self) -> Any:
        """The tensors that were written."""
        return self.tensors

    def _source_rank(self) -> int:
        return self.jobs[0].source

    source_rank = _source_rank

    def get_future(self) -> Any:
        """A future of the tensors; errors are raised by whoever waits for it, in C++ too."""
        if self._future is None:
            first: Any = torch.futures.Future()
            self._future = first.then(self._resolved)
            if not any(job.call.operation in _TRANSFERS for job in self.jobs):
                _works[self._future] = self
            left = Countdown(len(self.jobs), lambda: aside(lambda: first.set_result(None)))
            for job in self.jobs:
                job.when_done(left.one_less)
        return self._future

    def _resolved(self, _: Any) -> Any:
        error = self.exception()
        if error is not None:
            raise error
        return self.value() if self.value is not None else self.tensors


def _waiting(then: Callable[..., Any]) -> Callable[..., Any]:
    """A future's method that takes a callback, after the wait for the collective whose future it is."""

    @wraps(then)
    def called(future: Any, callback: Callable[[Any], Any]) -> Any:
        work = _works.get(future)
        if work is not None:
            with contextlib.suppress(Exception):  # which the callback meets when it asks for the value
                work.wait()
                future.wait()
        return then(future, callback)

    return called


for _name in ("then", "add_done_callback"):
    setattr(Future, _name, _waiting(getattr(Future, _name)))
