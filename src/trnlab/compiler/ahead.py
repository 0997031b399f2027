# SPDX-License-Identifier: Apache-2.0
"""A second core records what a program needs later on.

Routines of a program are recorded one by one, in its order, and none depends on another. A copy of this process
(Linux) begins at the other end; where both meet, all is recorded. What it has made is the same as here, so programs
do not depend on whether it helps. Whatever goes wrong there is done again here, with the error that it has here.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import parent_process
from typing import Any

import numpy as np

from trnlab.program.routine import Routine

STATE, AT, LENGTH, PARTS = range(4)  # columns of the table that both processes see
COLUMNS = 4
ALIGNED = 64  # bytes that parts of the file begin at multiples of
OPEN, HERE, THERE, DONE, FAILED = range(5)  # of STATE
LOOKS = 0.0005  # seconds between two looks at what the other process does
PATIENCE = 60.0  # seconds until it is taken for lost


class SecondRecorder:
    """Records routines from the last one on. jobs: what makes each, in the order in which they are asked for."""

    def __init__(self, jobs: Mapping[Any, Callable[[], Routine]]) -> None:
        self._number = {key: n for n, key in enumerate(jobs)}
        self._child = 0
        if len(jobs) > 1 and can_help():
            self._table = np.frombuffer(mmap.mmap(-1, len(jobs) * COLUMNS * 8), np.int64).reshape(-1, COLUMNS)
            self._file = os.memfd_create("recorded")
            self._start(list(jobs.values()))

    def _start(self, jobs: Sequence[Callable[[], Routine]]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # of threads, which the copy has none of and needs none
            try:
                self._child = os.fork()
            except OSError:
                return
        if self._child == 0:
            try:
                gc.disable()  # it would write to pages that both share
                self._record(jobs)
            finally:
                os._exit(0)

    def _record(self, jobs: Sequence[Callable[[], Routine]]) -> None:
        at = 0
        for n in reversed(range(len(jobs))):
            if self._table[n, STATE] != OPEN:
                return
            self._table[n, STATE] = THERE
            try:
                routine = jobs[n]()
                routine._memo.clear()
                parts = _parts(routine)
            except Exception:
                self._table[n, STATE] = FAILED
                continue
            length = self._write(parts, at)
            self._table[n, AT:] = at, length, len(parts)
            self._table[n, STATE] = DONE
            at += -(-length // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY

    def _write(self, parts: Sequence[memoryview], at: int) -> int:
        """Write parts behind a table of their sizes, from byte `at` of the file on; returns how many bytes."""
        sizes = np.array([len(part) for part in parts], np.int64)
        end = at
        for part in (memoryview(sizes.tobytes()), *parts):
            written = 0
            while written < len(part):
                written += os.pwrite(self._file, part[written:], end + written)
            end += -(-len(part) // ALIGNED) * ALIGNED
        os.ftruncate(self._file, max(end, os.fstat(self._file).st_size))
        return end - at

    def take(self, key: Any) -> Routine | None:
        """The routine of a job; None if it is to be recorded here."""
        n = self._number.get(key)
        if n is None or not self._child:
            return None
        if self._table[n, STATE] == OPEN:
            self._table[n, STATE] = HERE
        waited = time.monotonic()
        while self._table[n, STATE] == THERE:
            if time.monotonic() - waited > PATIENCE or os.waitpid(self._child, os.WNOHANG) != (0, 0):
                self.close()
                return None
            time.sleep(LOOKS)
        if self._table[n, STATE] != DONE:
            return None
        at, length, count = (int(x) for x in self._table[n, AT:])
        content, *arrays = _read(mmap.mmap(self._file, length, access=mmap.ACCESS_COPY, offset=at), count)
        found: Routine = pickle.loads(content, buffers=arrays)
        return found

    def close(self) -> None:
        """End the other process."""
        if self._child:
            try:
                os.kill(self._child, signal.SIGKILL)
                os.waitpid(self._child, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
            self._child = 0
            os.close(self._file)


def _parts(routine: Routine) -> list[memoryview]:
    """A routine as bytes, and its arrays, which are not copied into them."""
    arrays: list[pickle.PickleBuffer] = []
    content = pickle.dumps(routine, pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append)
    return [memoryview(content), *(array.raw() for array in arrays)]


def _read(file: mmap.mmap, count: int) -> list[memoryview]:
    """So many parts that `SecondRecorder._write` wrote: pages that both processes share until one is written to."""
    sizes = np.frombuffer(file, np.int64, count).tolist()
    found, whole, at = [], memoryview(file), 8 * count
    for size in sizes:
        at = -(-at // ALIGNED) * ALIGNED
        found.append(whole[at : at + size])
        at += size
    return found


def can_help() -> bool:
    """Whether there is a core for another process, and this one is no helper of somebody and has no threads that a
    copy would miss: Python's own, or those of JAX and TensorFlow, which forbid it."""
    alone = threading.active_count() == 1 and not {"jax", "tensorflow"} & sys.modules.keys()
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1 and parent_process() is None and alone
