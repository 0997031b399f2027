# SPDX-License-Identifier: Apache-2.0
"""A thread that finds out that nobody will ever answer: a rank that is gone, or ranks that wait for each other.

Every rank keeps a note in the store of what it waits for. Who waits for long reads the notes of the others.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing.util
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from trnlab.errors import CollectiveError, TrnlabError
from trnlab.frontends.torch.distributed import run_folder, sites
from trnlab.frontends.torch.distributed.calls import REFUSED_BY_JOINED, named
from trnlab.frontends.torch.distributed.jobs import MEETING, QUEUED, PendingCall
from trnlab.runtime import session
from trnlab.runtime.notices import say, tell
from trnlab.runtime.script import Terminated, on_failure, our_error

PERIOD_S = 0.25  # between two notes
LOOK_AFTER_S = 1.0  # of waiting
STABLE_S = 2.0  # that all ranks wait without any progress, to be called a deadlock
STABLE_BEATS = 4  # notes that each of them writes meanwhile: of a machine that stood still time alone says nothing
IDLE_S = 10.0  # without use of the processor, to count as waiting where the wait is PyTorch's own
IDLE_SHARE = 0.05
GRACE_S = 1.0  # for the note of a rank whose connection broke
Note = Mapping[str, Any]


class Watched(Protocol):
    """What the watch needs to know of a world."""

    rank: int
    ranks: tuple[int, ...]

    def release(self) -> None:
        """End the threads that wait for others."""
        ...


class PeerWatch:
    """The notes of this rank, and its eye on those of the others.

    `timeout_s`: for all ranks to come.
    `verdict`: why no more can be done, once that is known.
    """

    def __init__(self, world: Watched, store: Any, timeout_s: float) -> None:
        self.world, self.timeout_s = world, timeout_s
        self.verdict: CollectiveError | None = None
        self._store = _own(store)
        self._jobs: list[PendingCall] = []
        self._progress, self._last = 0, ""
        self._status, self._why = "running", ""
        self._beat = 0
        # What all ranks said when they last changed, when that was, and how many notes each had written by then.
        self._seen: tuple[Any, float, Mapping[int, int]] = ((), 0.0, {})
        self._busy = (time.monotonic(), time.process_time())  # when the process last used its processor
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="trnlab watch", daemon=True)

    def start(self) -> None:
        """Write the first note and begin."""
        self._write()
        self._thread.start()
        _watches.append(self)
        _install()

    def all_there(self) -> None:
        """Wait until every rank has written its first note. Raises CollectiveError (TRN281) that names those which
        do not come."""
        missing, ends, pause = list(self.world.ranks), time.monotonic() + self.timeout_s, PERIOD_S / 50
        while missing := [rank for rank in missing if not self._store.check([f"note/{rank}"])]:
            if time.monotonic() > ends:
                raise CollectiveError(
                    f"{named(missing)} never joined the job",
                    code="TRN281",
                    got=f"{len(self.world.ranks) - len(missing)} of {len(self.world.ranks)} ranks are there",
                    limit=f"the timeout, {self.timeout_s:g} s",
                    remedy="look at what it says itself, and whether every rank comes to init_process_group",
                )
            time.sleep(pause)
            pause = min(2 * pause, PERIOD_S)

    def connected(self) -> None:
        """This rank has its connections with all others."""
        self._store.set(f"connected/{self.world.rank}", "yes")

    def all_connected(self, limit_s: float) -> None:
        """Wait a little for ranks that are still about to connect: where a connection closes meanwhile, that is an
        error of theirs."""
        ends, keys = time.monotonic() + limit_s, [f"connected/{rank}" for rank in self.world.ranks]
        with contextlib.suppress(Exception):  # a store that is gone says nothing
            while not self._store.check(keys) and time.monotonic() < ends:
                time.sleep(PERIOD_S / 10)

    def add(self, job: PendingCall) -> None:
        """A job was asked for."""
        with self._lock:
            self._jobs.append(job)
            self._progress += 1
        job.when_done(self._over)

    def _over(self, job: PendingCall) -> None:
        with self._lock:
            self._jobs.remove(job)
            self._progress += 1
            self._last = f"{job.call.text} at {job.call.site}"
        if isinstance(job.error, CollectiveError) and job.error.code != REFUSED_BY_JOINED and self.verdict is None:
            self.verdict = job.error  # of the other, all ranks know at once, and have answered equally many calls

    def drain(self) -> None:
        """Wait until nothing is on its way; whoever waits for this rank gets its answer."""
        while self._jobs and self.verdict is None:
            time.sleep(PERIOD_S / 10)

    def stop(self, status: str, why: str = "") -> None:
        """The last note: this rank takes part in nothing any more."""
        with self._lock:
            if self._status == "running":
                self._status, self._why = status, why
        self._end.set()
        self._write()
        for job in list(self._jobs) if status == "failed" else ():
            job.finish(error=self.verdict or CollectiveError("this rank failed", code="TRN271"))
        if self in _watches:
            _watches.remove(self)

    def lost(self, peer: int | None) -> CollectiveError:
        """The connection to a rank broke: what happened to it, as far as it could say."""
        ends = time.monotonic() + GRACE_S
        while time.monotonic() < ends:
            notes = self._notes()
            ended = [rank for rank in notes if notes[rank]["status"] != "running" and rank != self.world.rank]
            if peer in ended or (peer is None and ended):
                return self._gone(ended[0] if peer is None else peer, notes)
            time.sleep(PERIOD_S / 5)
        return self._gone(peer, {})

    # -- the thread -----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while not self._end.wait(PERIOD_S):
            self._write()
            now = time.monotonic()
            if any(now - job.since > min(LOOK_AFTER_S, job.timeout_s) for job in list(self._jobs)):
                error = self._look()
                if error is not None:
                    self._give_up(error)

    def _give_up(self, error: CollectiveError) -> None:
        self.verdict = error
        self._write()  # before anything else: this process may end at once
        for job in list(self._jobs):
            job.finish(error=error)

    def _look(self) -> CollectiveError | None:
        notes = self._notes()
        waiting = [job for job in list(self._jobs) if job.phase in (QUEUED, MEETING)]
        for job in waiting:
            for rank in job.ranks:
                if rank != self.world.rank and rank in notes and notes[rank]["status"] != "running":
                    return self._gone(rank, notes)
            if time.monotonic() - job.since > job.timeout_s:
                return self.late(job, job.timeout_s)
        return self._deadlock(notes) if waiting else None

    def _deadlock(self, notes: Mapping[int, Note]) -> CollectiveError | None:
        """An error when no rank is left that could do anything but wait."""
        said = tuple((rank, note["status"], note["progress"]) for rank, note in sorted(notes.items()))
        stuck = all(note["status"] != "running" or note["blocked"] for note in notes.values())
        beats = {rank: note["beat"] for rank, note in notes.items() if note["status"] == "running"}
        if said != self._seen[0] or not stuck or len(notes) < len(self.world.ranks):
            self._seen = (said if stuck else (), time.monotonic(), beats)
            return None
        ran = all(beat - self._seen[2][rank] >= STABLE_BEATS for rank, beat in beats.items())
        if not ran or time.monotonic() - self._seen[1] < STABLE_S:
            return None
        return CollectiveError(
            "all ranks wait, and none can go on: a deadlock",
            code="TRN272",
            got=_listed(notes),
            limit="each rank calls the collectives of a group in the same order; a send meets a recv",
            remedy="let all ranks make these calls in one order, or use isend, irecv or batch_isend_irecv",
        )

    def late(self, job: PendingCall, timeout_s: float) -> CollectiveError:
        """The error for a job that takes longer than it may."""
        return CollectiveError(
            f"{job.call.text} of {job.group} is not done within its timeout of {timeout_s:g} s",
            code="TRN273",
            got=_listed(self._notes()),
            limit=f"the timeout, {timeout_s:g} s",
            remedy="see what the ranks that are not there yet do; a larger timeout: init_process_group(timeout=...)",
        )

    def _gone(self, rank: int | None, notes: Mapping[int, Note]) -> CollectiveError:
        mine = [f"{job.call.text} at {job.call.site}" for job in list(self._jobs)]
        who = "a rank" if rank is None else f"rank {rank}"
        note = notes.get(-1 if rank is None else rank)
        if note is not None and note["verdict"]:
            return CollectiveError(**note["verdict"])
        what = f"{who} is gone, and rank {self.world.rank} waits for it"
        if note is not None:
            how = {"ended": "came to the end of its script", "left": "closed the group (destroy_process_group)"}
            what = f"{who} {how.get(note['status'], 'failed')}, and rank {self.world.rank} waits for it"
        lines = [f"rank {self.world.rank} waits in {text}" for text in mine[:3]]
        if note is not None and note["why"]:
            lines.insert(0, f"{who}: {note['why']}")
        if note is not None and note["last"]:
            lines.append(f"{who} last did {note['last']}")
        return CollectiveError(
            what,
            code="TRN271",
            got="\n         ".join(lines) or None,
            limit="every rank takes part in each collective of its groups",
            remedy="look at what that rank says itself; if it is the end of its script, let it make as many calls",
        )

    # -- notes ----------------------------------------------------------------------------------------------------
    def _write(self) -> None:
        self._beat += 1
        now = time.monotonic()
        jobs = list(self._jobs)
        note = {
            "status": self._status,
            "why": self._why,
            "progress": self._progress,
            "beat": self._beat,
            "last": self._last,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "blocked": self._blocked(jobs, now),
            "waits": [[job.group, job.call.text, job.call.site, job.phase] for job in jobs[:4]],
            "verdict": self._shared(),
        }
        with contextlib.suppress(Exception):  # a store that is gone says nothing; connections will
            self._store.set(f"note/{self.world.rank}", json.dumps(note))

    def _shared(self) -> dict[str, Any] | None:
        """What is wrong with all ranks together, where this one knows it."""
        error = self.verdict
        if error is None or error.code == "TRN271":
            return None
        return {
            "what": error.what,
            "code": error.code,
            "got": error.got,
            "limit": error.limit,
            "remedy": error.remedy,
        }

    def _blocked(self, jobs: Sequence[PendingCall], now: float) -> bool:
        """Whether all that this process does is wait for others."""
        used = time.process_time()
        if used - self._busy[1] > IDLE_SHARE * (now - self._busy[0]):
            self._busy = (now, used)
        waits = any(job.waiters and job.phase in (QUEUED, MEETING) for job in jobs)
        return waits or (bool(jobs) and now - self._busy[0] > IDLE_S)

    def _notes(self) -> dict[int, Note]:
        notes: dict[int, Note] = {}
        with contextlib.suppress(Exception):
            for rank in self.world.ranks:
                key = f"note/{rank}"
                if self._store.check([key]):
                    notes[rank] = json.loads(self._store.get(key))
        return notes


def _own(store: Any) -> Any:
    """A connection to the store that the main thread cannot keep waiting."""
    try:
        return store.clone()
    except (AttributeError, RuntimeError, NotImplementedError):
        return store


def _listed(notes: Mapping[int, Note]) -> str:
    """A line for each rank, those that wait for the same together."""
    said: dict[str, list[int]] = {}
    for rank, note in sorted(notes.items()):
        ended = {"ended": "came to its end", "left": "left the group"}.get(note["status"], note["why"])
        waits = [f"waits in {text} of {group} at {site}" for group, text, site, _ in note["waits"][:2]]
        text = "; ".join(waits) or (str(ended) if note["status"] != "running" else "computes")
        said.setdefault(text, []).append(rank)
    return "\n         ".join(f"{named(ranks)}: {text}" for text, ranks in said.items())


# -- the end of the process --------------------------------------------------------------------------------------
_watches: list[PeerWatch] = []
_broken: list[PeerWatch] = []  # of scripts that failed
_installed = False


def _install() -> None:
    """Let the end of this process be known to the others, whichever way it comes."""
    global _installed
    if _installed:
        return
    _installed = True
    atexit.register(ended)
    multiprocessing.util.Finalize(None, ended, exitpriority=100)
    sys.excepthook = _telling(sys.excepthook)
    on_failure.append(failed)


def _telling(hook: Callable[..., Any]) -> Callable[..., Any]:
    def show(kind: Any, error: BaseException, trace: Any) -> Any:
        failed(error)
        if isinstance(error, Terminated):
            return say(str(error))
        ours = our_error(error)
        return hook(kind, error, trace) if ours is None else tell(ours)

    return show


def failed(error: BaseException) -> None:
    """The script of this rank raised an exception that it does not catch."""
    for watch in list(_watches):
        watch.stop("failed", _reason(error))
        _broken.append(watch)
    run = getattr(session.active(), "run", None)
    if run is not None:
        run.failure = _reason(error)


def ended() -> None:
    """This process is about to end."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit) and error.__context__ is not None:
        error = error.__context__  # as torch.multiprocessing ends a process whose function raised
    if error is not None and not (isinstance(error, SystemExit) and not error.code):
        failed(error)
    for watch in [*_watches, *_broken]:
        watch.drain()
        watch.stop("ended")
        watch.world.release()
    run_folder.finish()


def _reason(error: BaseException) -> str:
    if isinstance(error, TrnlabError):
        return f"{error.code}: {error.what}"
    return sites.raised(error)
