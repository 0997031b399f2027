# SPDX-License-Identifier: Apache-2.0
"""What a run says of itself while it goes on: one small file per process, for whoever looks (`trnlab monitor`).

    <folder>/<pid>.json     counters since the start of the process; renewed at most once a second, by events
    <folder>/watched        touched by who looks

The folder belongs to the user and the host: TRNLAB_LIVE, else XDG_RUNTIME_DIR/trnlab, else one under the temporary
files. TRNLAB_LIVE=off writes nothing. Times of executables are a simulation; it is made when the run ends, or earlier
when somebody looks, and not twice. A file that cannot be written is not: to be watched never stops a run.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnlab.errors import CollectiveError, NumericsError, TrnlabError, UsageError
from trnlab.fabric.cluster import CORES_PER_RANK
from trnlab.files import replace
from trnlab.runtime.live_records import SCHEMA, VERSION, is_ours, user
from trnlab.runtime.live_records import read as records
from trnlab.storage import plain_files
from trnlab.units import PS_PER_S

if TYPE_CHECKING:
    from trnlab.runtime.executable import Executable
    from trnlab.runtime.session import Session

PERIOD_S = 1.0  # between two writes, at least
LOOKED_S = 30.0  # after a look, times are worth a simulation
SHOWN_S = 60.0  # that a process which ended badly stays to be seen
PLACE = "TRNLAB_LIVE"
RUNNING, FAILED = "running", "failed"


def folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where runs of this user on this host say how they are; None where that is switched off or nowhere."""
    told = environment.get(PLACE)
    if told:
        return None if told == "off" else _expanded(told)
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "trnlab"
    try:
        return Path(tempfile.gettempdir()) / f"trnlab-{user()}"
    except OSError:  # no folder for temporary files can be written
        return None


def _expanded(told: str) -> Path | None:
    """A path with the home of `~` in it; None for a user whom nobody knows: to be watched never stops a run."""
    try:
        return Path(told).expanduser()
    except RuntimeError:
        return None


class StatusFile:
    """Writes the file of this process. `tell` makes the record, see `record`; errors: by kind, how many."""

    def __init__(self, tell: Callable[[bool], dict[str, Any]]) -> None:
        self._tell, self._folder, self._owner = tell, folder(), 0
        self._written = float("-inf")
        self.errors: dict[str, int] = {}
        self.outcomes: dict[str, int] = {}
        self.ecc: dict[str, int] = {}
        if self._folder is not None:
            self._prepare(self._folder)

    def _prepare(self, place: Path) -> None:
        """Make the folder; one that belongs to another user is left alone."""
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            ours = is_ours(place)
        except OSError:
            self._folder = None
            return
        if not ours:
            self._folder = None
        else:
            sweep(place)
            atexit.register(self.end)

    def renew(self, *, now: bool = False) -> None:
        """Write the file where the last time is long enough ago; costs one look at the clock otherwise."""
        if self._folder is None or (not now and time.perf_counter() - self._written < PERIOD_S):
            return
        self._owner = os.getpid()
        record = {
            "pid": self._owner,
            "birth": birth(self._owner),
            "host": socket.gethostname(),
            "updated": time.time(),
            "status": FAILED if self.errors else RUNNING,
            "errors": self.errors,
            "outcomes": self.outcomes,
            "ecc": self.ecc,
            **self._tell(_looked(self._folder)),
        }
        try:
            replace(self._folder / f"{self._owner}.json", json.dumps(record).encode())
        except OSError:
            self._folder = None
        self._written = time.perf_counter()

    def failed(self, error: BaseException) -> None:
        """The script ended in an error: count it as the vendor's monitor does."""
        kind, outcome = _kind(error)
        self.errors[kind] = self.errors.get(kind, 0) + 1
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def end(self) -> None:
        """The run is over: its file goes, unless an error is to be seen in it."""
        place, self._folder = self._folder, None if not self.errors else self._folder
        if place is None or self._owner != os.getpid():
            return
        if self.errors:
            self.renew(now=True)
            self._folder = None
        else:
            with contextlib.suppress(OSError):
                (place / f"{self._owner}.json").unlink()


def record(
    session: Session, executables: Mapping[str, Executable], calls: Mapping[str, int], *, timed: bool
) -> dict[str, Any]:
    """What is said of a session. timed: simulate executables that were not yet; else their latency is None."""
    fabric = session.counters.fabric
    place = {"instance": 0, "chip": 0, "core": 0}
    rank, ranks, network_s = 0, 1, 0.0
    if fabric is not None:
        told = fabric.record()
        rank, ranks, network_s, place = told["rank"], told["ranks"], told["seconds"], told["place"]
    logical = CORES_PER_RANK.get(session.chip.name, 1) if fabric is not None or session.pairs else 1
    executions = [_execution(each, calls[key], timed) for key, each in executables.items()]
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "tag": os.environ.get("NEURON_PROCESS_TAG") or str(os.getpid()),
        "target": session.target.name,
        "instances": session.instances,
        "rank": rank,
        "ranks": ranks,
        "place": place,
        "logical": logical,
        "pairs": session.pairs,
        "network_s": network_s,
        "executions": executions,
        "memory": _memory(executables.values()),
    }


def _execution(executable: Executable, calls: int, timed: bool) -> dict[str, Any]:
    known = timed or "timeline" in executable.__dict__
    return {
        "name": executable.name,
        "key": executable.key,
        "calls": calls,
        "latency_s": executable.timeline.total / PS_PER_S if known else None,
        "flops": int(executable.metadata.get("model_flops") or 0),
    }


def _memory(executables: Any) -> dict[str, int]:
    """Bytes of HBM. Programs share their tensors, so of these the most that one has counts; the scratchpad is shared,
    too. Constants are each program's own."""
    found = {"constants": 0, "model_shared_scratchpad": 0, "tensors": 0}
    for executable in executables:
        program = executable.program
        kept = sum(t.nbytes for t in program.tensors if t.kind in ("input", "output"))
        found["constants"] += sum(t.nbytes for t in program.tensors if t.kind == "constant")
        found["model_shared_scratchpad"] = max(found["model_shared_scratchpad"], program.arena_bytes)
        found["tensors"] = max(found["tensors"], kept)
    return found


def _kind(error: BaseException) -> tuple[str, str]:
    """Kind of an error: the vendor's kind of it, and of the execution's outcome."""
    if isinstance(error, NumericsError):
        return "numerical", "completed_with_num_err"
    if isinstance(error, TrnlabError) and error.code in ("TRN555", "TRN556"):
        return "hardware", "timed_out" if error.code == "TRN556" else "completed_with_err"
    if isinstance(error, CollectiveError):
        return "runtime", "timed_out" if error.code == "TRN273" else "completed_with_err"
    return ("model" if isinstance(error, TrnlabError) else "generic"), "completed_with_err"


# -- looking -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class State:
    """What one process said. gone: it does not run any more; why: how it ended, where that is known."""

    record: dict[str, Any]
    gone: bool

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self.record["pid"])

    @property
    def why(self) -> str:
        """What is wrong with it, or nothing."""
        if not self.gone:
            return ""
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(self.record["errors"].items()))
        return f"the process ended with errors: {said}" if said else "the process is gone without a word: killed"


def look(place: Path) -> None:
    """Say that somebody looks. Raises OSError, UsageError (TRN568) where the folder is another user's, or none."""
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_ours(place):
        raise UsageError(
            "what runs say of themselves lies in a folder that is another user's, or a link",
            code="TRN568",
            got=str(place),
            limit="a folder of this user",
            remedy=f"name another in {PLACE}, for the runs as for the monitor",
        )
    with plain_files.opened(place / "watched", os.O_WRONLY | os.O_CREAT) as descriptor:
        os.utime(descriptor)


def states(place: Path) -> list[State]:
    """All processes that say something, by rank; a file that is none of ours is passed over."""
    found = [State(told, not _alive(told)) for _, told in records(place)]
    return sorted(found, key=lambda state: (state.record["rank"], state.pid))


def sweep(place: Path) -> None:
    """Take away what ended long enough ago."""
    now = time.time()
    for path, told in records(place):
        if not _alive(told) and now - float(told["updated"]) > SHOWN_S:
            with contextlib.suppress(OSError):
                plain_files.removed(path)


def birth(pid: int) -> int:
    """When a process started, in the kernel's ticks since boot: a number that is used again is told apart.

    0: unknown, as where /proc is missing.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _looked(place: Path) -> bool:
    try:
        return time.time() - (place / "watched").stat().st_mtime < LOOKED_S
    except OSError:
        return False


def _alive(told: Mapping[str, Any]) -> bool:
    try:
        os.kill(int(told["pid"]), 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return birth(int(told["pid"])) == int(told["birth"])
