# SPDX-License-Identifier: Apache-2.0
"""What this rank was asked for and has not done yet, and the threads that do it.

Collectives of a group are done one after the other, in the order in which they were asked for; so are transfers
between two ranks in one direction. Each such order is a lane, with a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from trnlab.frontends.torch.distributed.calls import CollectiveCall

_THREADS = "trnlab "  # begins the names of threads that others wait for
QUEUED, MEETING, MOVING, DONE = "queued", "meeting", "moving", "done"


def aside(callback: Callable[[], object]) -> None:
    """Call what may run code of the script: here, unless this is a thread that the script may come to wait for."""
    if not threading.current_thread().name.startswith(_THREADS):
        callback()
        return
    threading.Thread(target=callback, name="callback", daemon=True).start()


class PendingCall:
    """One call on its way. `ranks`: who takes part, by rank of the world. `waiters`: threads that wait for it now.
    `timeout_s`: from when it was asked for to when all others have to be there."""

    def __init__(
        self,
        call: CollectiveCall,
        ranks: Sequence[int],
        group: str,
        work: Callable[[PendingCall], Any],
        timeout_s: float,
    ) -> None:
        self.call, self.ranks, self.group, self._work = call, tuple(ranks), group, work
        self.timeout_s = timeout_s
        self.phase, self.since, self.waiters = QUEUED, time.monotonic(), 0
        self.result: Any = None
        self.error: BaseException | None = None
        self.source = -1  # of a transfer, once it is known
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[PendingCall], None]] = []

    def run(self) -> None:
        """Do it; what goes wrong is kept for whoever waits."""
        if self._done.is_set():
            return
        try:
            self.finish(result=self._work(self))
        except BaseException as error:
            self.finish(error=error)

    def finish(self, result: Any = None, error: BaseException | None = None) -> None:
        """It is over. Only the first call counts: whoever gave up for it comes before what it still does."""
        with self._lock:
            if self._done.is_set():
                return
            self.result, self.error, self.phase = result, error, DONE
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def when_done(self, callback: Callable[[PendingCall], None]) -> None:
        """Call it at the end, or now."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    @property
    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False when that takes longer than `timeout_s`. Raises what went wrong."""
        self.waiters += 1
        try:
            ended = self._done.wait(timeout_s)
        finally:
            self.waiters -= 1
        if self.error is not None:
            raise self.error
        return ended


class CallQueue:
    """Jobs in their order, on a thread that starts with the first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._queue: SimpleQueue[PendingCall | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, job: PendingCall) -> PendingCall:
        """Queue a job."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()
        self._queue.put(job)
        return job

    def close(self) -> None:
        """End the thread after what is queued."""
        if self._thread is not None:
            self._queue.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; whether it came."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job.run()
