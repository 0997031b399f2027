# SPDX-License-Identifier: Apache-2.0
"""Questions that take a while: asked once, worked on by a process of their own, kept when answered, dropped when
nobody asks any more."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from trnlab.cli.web import work
from trnlab.cli.web.shell import trouble
from trnlab.cli.web.work import DONE, Words
from trnlab.errors import RunError

KEPT = 40  # answers
LINES = 60  # of progress, the latest
ABANDONED_S = 4.0  # without anybody asking for an answer
POLL_S = 0.02
WAITING, WORKING, ANSWERED, CANCELLED = "waiting", "working", "answered", "cancelled"


@dataclass
class PageJob:
    """A question and what became of it."""

    number: int
    words: Words
    state: str = WAITING
    lines: list[str] = field(default_factory=list)  # of progress
    answer: dict[str, Any] = field(default_factory=dict)
    asked: float = 0.0  # when somebody asked last
    began: float = 0.0
    seconds: float = 0.0  # that the answer took

    def told(self) -> dict[str, Any]:
        """As a page hears of it."""
        since = self.seconds or (time.monotonic() - self.began if self.began else 0.0)
        over = self.state in (ANSWERED, CANCELLED)
        return {"state": self.state, "lines": self.lines[-12:], "seconds": since, "over": over, **self.answer}


class Workplace:
    """One process that works on one question after the other. A question that is cancelled, or that nobody asks for
    any more, ends the process; the next one gets a new one."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[Words, PageJob] = OrderedDict()
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """Have the process ready before the first question."""
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()

    def ask(self, words: Words, patience_s: float = 0.0) -> dict[str, Any]:
        """How far a question is, or its answer; it is begun if it is new. patience_s: how long to wait for that."""
        self.start()
        until = time.monotonic() + patience_s
        with self._changed:
            job = self._jobs.get(words)
            if job is None or job.state == CANCELLED:
                job = self._jobs[words] = PageJob(next(self._numbers), words)
            self._jobs.move_to_end(words)
            self._forget()
            while True:
                job.asked = time.monotonic()
                self._changed.notify_all()
                left = until - time.monotonic()
                if job.state in (ANSWERED, CANCELLED) or left <= 0:
                    return job.told()
                self._changed.wait(min(left, ABANDONED_S / 2))

    def known(self, words: Words) -> bool:
        """Whether a question was asked before."""
        with self._changed:
            return words in self._jobs

    def cancel(self, words: Words) -> None:
        """Drop a question."""
        with self._changed:
            job = self._jobs.get(words)
            if job is not None and job.state in (WAITING, WORKING):
                self._drop(job)

    def close(self) -> None:
        """End the process."""
        with self._changed:
            self._closed = True
            self._end()
            self._changed.notify_all()

    # -- in the thread -------------------------------------------------------------------------------------------
    def _work(self) -> None:
        while not self._closed:
            with self._changed:
                if self._process is None or not self._process.is_alive():
                    self._begin()
                job = next((j for j in self._jobs.values() if j.state == WAITING), None)
                if job is None:
                    self._changed.wait(1.0)
                    continue
                if time.monotonic() - job.asked > ABANDONED_S:
                    self._drop(job)
                    continue
                job.state, job.began = WORKING, time.monotonic()
                connection = self._connection
            assert connection is not None
            try:
                connection.send((job.number, job.words))
                self._follow(job, connection)
            except (OSError, EOFError):  # it ended, because it was dropped or by itself
                self._lost(job)

    def _follow(self, job: PageJob, connection: Connection) -> None:
        """Hear of a job until it is over."""
        while job.state == WORKING:
            if not connection.poll(POLL_S * 10):
                if time.monotonic() - job.asked > ABANDONED_S:
                    with self._changed:
                        self._drop(job)
                continue
            number, what, told = connection.recv()
            with self._changed:
                if number != job.number:
                    continue
                if what == DONE:
                    job.answer, job.state, job.seconds = told, ANSWERED, time.monotonic() - job.began
                else:
                    job.lines = [*job.lines, told][-LINES:]
                self._changed.notify_all()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=work.main, args=(theirs,), name="trnlab ui: work")
        self._process.start()
        theirs.close()

    def _end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.join(5)
        self._process = None

    def _drop(self, job: PageJob) -> None:
        if job.state == WORKING:
            self._end()
        job.state = CANCELLED
        self._changed.notify_all()

    def _lost(self, job: PageJob) -> None:
        """The process ended."""
        with self._changed:
            if job.state == WORKING:
                error = RunError(
                    "the process that worked on this ended",
                    code="TRN856",
                    got=" ".join(job.words),
                    remedy="ask for less at once: most often memory was short, which `dmesg` says",
                )
                job.answer, job.state = {"html": trouble(error), "scripts": []}, ANSWERED
            self._end()
            self._changed.notify_all()

    def _forget(self) -> None:
        over = [words for words, job in self._jobs.items() if job.state in (ANSWERED, CANCELLED)]
        for words in over[: max(0, len(self._jobs) - KEPT)]:
            del self._jobs[words]
