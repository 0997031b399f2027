# SPDX-License-Identifier: Apache-2.0
"""Recording the streams of several cores, where one may need values that come from another.

Each core's program is an ordinary Python function, recorded from start to end, one after the other. Only where a core
needs a value behind a meeting that another core has not recorded yet does the other take over, on a thread of its
own, until it can go on no further; one thread runs at a time, in an order that is always the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from trnlab.isa.meeting import Place
from trnlab.lang.recorder import exchange_active
from trnlab.lang.tensor import Tensor
from trnlab.nki.live import Array, Shadow
from trnlab.program.gang import Matcher, meetings
from trnlab.sim.functional.gang import meet


class Company:
    """The cores of one launch while they are recorded. It is the reader of their recorders."""

    def __init__(self, places: Sequence[Place], shadows: Sequence[Shadow]) -> None:
        self.places, self.shadows = list(places), list(shadows)
        self._matcher = Matcher(self.places, shadows[0].recorder.chip.name)
        self._turns = [_Turn() for _ in shadows]
        self._stopping = False
        for m, shadow in enumerate(self.shadows):
            shadow.recorder.reader = self._reader(m)

    def record(self, bodies: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run each core's body, which records; returns what they return. Raises what they raise."""
        try:
            for turn, body in zip(self._turns, bodies):
                turn.body = body
            for m, turn in enumerate(self._turns):
                if turn.thread is None:
                    turn.outermost = True
                    turn.result = turn.body()
                    turn.done = True
                while not turn.done:
                    self._let_others(m)
            return [turn.result for turn in self._turns]
        finally:
            self._stopping = True
            for turn in self._turns:
                if turn.thread is not None and turn.thread.is_alive():
                    turn.mine.release()
                    turn.thread.join()

    # -- values -------------------------------------------------------------------------------------------------
    def _reader(self, m: int) -> Callable[[Tensor], Array]:
        def read(tensor: Tensor) -> Array:
            while not self._reach(m):
                if self._turns[m].outermost:
                    self._let_others(m)
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

    # -- turns --------------------------------------------------------------------------------------------------
    def _let_others(self, m: int) -> None:
        """Core m cannot go on: the others record further. Raises ConstraintError where none can."""
        others = [o for o, turn in enumerate(self._turns) if not turn.done and not turn.outermost]
        further = [self._resume(o) for o in others]
        if any(further):
            return
        for o, turn in enumerate(self._turns):
            if turn.done:
                self._matcher.finish(o)
        self._matcher.check_end()

    def _resume(self, m: int) -> bool:
        """Core m records until it is done or can go on no further; whether it came any further. Raises its error."""
        turn, builder = self._turns[m], self.shadows[m].recorder.builder
        before = len(builder)
        turn.stack = exchange_active(turn.stack)
        if turn.thread is None:
            turn.thread = threading.Thread(target=self._work, args=(turn,), daemon=True)
            turn.thread.start()
        else:
            turn.mine.release()
        turn.resumers.acquire()
        turn.stack = exchange_active(turn.stack)
        if turn.error is not None:
            error, turn.error = turn.error, None
            raise error
        return turn.done or len(builder) > before

    def _work(self, turn: _Turn) -> None:
        try:
            turn.result = turn.body()
        except BaseException as error:
            turn.error = error
        turn.done = True
        turn.resumers.release()

    def _back(self, m: int) -> None:
        """Core m, on its own thread, can go on no further for now."""
        turn = self._turns[m]
        turn.resumers.release()
        turn.mine.acquire()
        if self._stopping:
            raise _StoppedError


class _StoppedError(BaseException):
    """Ends the thread of a core that nobody waits for any more."""


class _Turn:
    """Where a core's recording is. outermost: it runs on the caller's own thread."""

    def __init__(self) -> None:
        self.body: Callable[[], Any] = lambda: None
        self.thread: threading.Thread | None = None
        self.mine, self.resumers = threading.Semaphore(0), threading.Semaphore(0)
        self.stack: list[Any] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = self.outermost = False
