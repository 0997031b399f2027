# SPDX-License-Identifier: Apache-2.0
"""Recording the streams of several cores, where one may need values that come from another.

Each core's program is an ordinary Python function, recorded from start to end, one after the other. Only where a core
needs a value behind a meeting that another core has not recorded yet does the other core's recording run, as a
coroutine on a thread of its own, until it blocks; one thread runs at a time, in an order that is always the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from trnlab.isa.collectives.meeting import CorePlace
from trnlab.lang.recorder import exchange_active
from trnlab.lang.tensor import Tensor
from trnlab.nki.tracing.live import Array, Shadow
from trnlab.program.gang import Matcher, meetings
from trnlab.sim.functional.gang import meet


class InterleavedRecording:
    """The cores of one launch while they are recorded, each a coroutine. It is the reader of their recorders."""

    def __init__(self, places: Sequence[CorePlace], shadows: Sequence[Shadow]) -> None:
        self.places, self.shadows = list(places), list(shadows)
        self._matcher = Matcher(self.places, shadows[0].recorder.chip.name)
        self._coroutines = [_Coroutine() for _ in shadows]
        self._stopping = False
        for m, shadow in enumerate(self.shadows):
            shadow.recorder.reader = self._reader(m)

    def record(self, bodies: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run each core's body, which records; returns what they return. Raises what they raise."""
        try:
            for coroutine, body in zip(self._coroutines, bodies):
                coroutine.body = body
            for m, coroutine in enumerate(self._coroutines):
                if coroutine.thread is None:
                    coroutine.outermost = True
                    coroutine.result = coroutine.body()
                    coroutine.done = True
                while not coroutine.done:
                    self._run_others(m)
            return [coroutine.result for coroutine in self._coroutines]
        finally:
            self._stopping = True
            for coroutine in self._coroutines:
                if coroutine.thread is not None and coroutine.thread.is_alive():
                    coroutine.mine.release()
                    coroutine.thread.join()

    # -- values -------------------------------------------------------------------------------------------------
    def _reader(self, m: int) -> Callable[[Tensor], Array]:
        def read(tensor: Tensor) -> Array:
            while not self._reach(m):
                if self._coroutines[m].outermost:
                    self._run_others(m)
                else:
                    self._back(m)
            return self.shadows[m].read(tensor)

        return read

    def _reach(self, m: int) -> bool:
        """Execute all that core m has recorded; False where that needs what another has not recorded yet."""
        for o, shadow in enumerate(self.shadows):
            first = shadow.known
            part = shadow.take()
            if part is not None:
                self._matcher.add(o, meetings(part, self.places[o], first))
        for event in self._matcher.advance():
            for o, at in zip(event.members, event.at):
                self.shadows[o].run(at)
            meet([(self.places[o], *self.shadows[o].next) for o in event.members])
            for o in event.members:
                self.shadows[o].skip()
        waiting = self._matcher.next(m)
        self.shadows[m].run(self.shadows[m].known if waiting is None else waiting.at)
        return waiting is None

    # -- coroutines --------------------------------------------------------------------------------------------------
    def _run_others(self, m: int) -> None:
        """Core m cannot go on: the others record further. Raises ConstraintError where none can."""
        others = [o for o, coroutine in enumerate(self._coroutines) if not coroutine.done and not coroutine.outermost]
        further = [self._resume(o) for o in others]
        if any(further):
            return
        for o, coroutine in enumerate(self._coroutines):
            if coroutine.done:
                self._matcher.finish(o)
        self._matcher.check_end()

    def _resume(self, m: int) -> bool:
        """Core m records until it is done or can go on no further; whether it came any further. Raises its error."""
        coroutine, builder = self._coroutines[m], self.shadows[m].recorder.builder
        before = len(builder)
        coroutine.stack = exchange_active(coroutine.stack)
        if coroutine.thread is None:
            coroutine.thread = threading.Thread(target=self._work, args=(coroutine,), daemon=True)
            coroutine.thread.start()
        else:
            coroutine.mine.release()
        coroutine.resumers.acquire()
        coroutine.stack = exchange_active(coroutine.stack)
        if coroutine.error is not None:
            error, coroutine.error = coroutine.error, None
            raise error
        return coroutine.done or len(builder) > before

    def _work(self, coroutine: _Coroutine) -> None:
        try:
            coroutine.result = coroutine.body()
        except BaseException as error:
            coroutine.error = error
        coroutine.done = True
        coroutine.resumers.release()

    def _back(self, m: int) -> None:
        """Core m, on its own thread, can go on no further for now."""
        coroutine = self._coroutines[m]
        coroutine.resumers.release()
        coroutine.mine.acquire()
        if self._stopping:
            raise _StoppedError


class _StoppedError(BaseException):
    """Ends the thread of a core that nobody waits for any more."""


class _Coroutine:
    """Where a core's recording is. outermost: it runs on the caller's own thread."""

    def __init__(self) -> None:
        self.body: Callable[[], Any] = lambda: None
        self.thread: threading.Thread | None = None
        self.mine, self.resumers = threading.Semaphore(0), threading.Semaphore(0)
        self.stack: list[Any] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = self.outermost = False
