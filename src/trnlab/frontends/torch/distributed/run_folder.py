# SPDX-License-Identifier: Apache-2.0
"""The run of a rank that torchrun started: a folder for all ranks, without `trnlab run`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from trnlab.errors import RunError
from trnlab.runtime import session
from trnlab.runtime.jobs import ranks
from trnlab.runtime.notices import say, tell
from trnlab.runtime.run import RunRecord, new_folder
from trnlab.runtime.script import Terminated

STARTED = "TORCHELASTIC_RUN_ID"  # torchrun's
PATIENCE_S = 5.0  # for the summaries of the others
PERIOD_S = 0.1


def begin(store: Any, rank: int, size: int) -> None:
    """Keep a run from here on, where torchrun started this process and nobody keeps one yet. The folder is
    `runs/<script>-<n>`, which rank 0 makes and tells the others of."""
    here = session.current()
    if here.run is not None or STARTED not in os.environ or not sys.argv[0]:
        return
    script = Path(sys.argv[0]).resolve()
    if rank == 0:
        store.set("run", str(new_folder(Path("runs"), script.stem).resolve()))
    root = Path(store.get("run").decode())
    here.run = RunRecord(ranks.folder_of(root, rank), here, script, sys.argv[1:])
    _kept.append((here.run, root, rank, size, store))
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def finish() -> None:
    """Write what the runs of this process leave. The first rank that still lives adds how the others ended."""
    while _kept:
        run, root, rank, size, store = _kept.pop()
        try:
            interrupted = run.failure.startswith(Terminated.__name__)
            run.finish("interrupted" if interrupted else "failed" if run.failure else "complete")
            if all(_gone(_note(store, each)) for each in range(rank)):
                ranks.merge(root, size, ended=_lost(store, root, size))
                say(f"the run of {size} ranks is in {root}")
        except RunError as error:
            tell(error)


def _lost(store: Any, root: Path, size: int) -> set[int]:
    """Ranks that are gone without a summary. Waits for those that may still write theirs."""
    ends = time.monotonic() + PATIENCE_S
    first = {rank: _note(store, rank) for rank in ranks.running(root, size)}
    while True:
        left = {rank: _note(store, rank) for rank in ranks.running(root, size)}
        gone = {rank for rank, note in left.items() if _gone(note)}
        if len(gone) == len(left):
            return gone
        if time.monotonic() > ends:  # who runs writes notes all the time
            return gone | {rank for rank, note in left.items() if note is not None and note == first.get(rank)}
        time.sleep(PERIOD_S)


def _note(store: Any, rank: int) -> dict[str, Any] | None:
    """What the watch of a rank last wrote."""
    with contextlib.suppress(Exception):  # a store that is gone says nothing
        if store.check([key := f"note/{rank}"]):
            found: dict[str, Any] = json.loads(store.get(key))
            return found
    return None


def _gone(note: dict[str, Any] | None) -> bool:
    """Whether a rank's process is no more, as far as this host can tell."""
    if note is None or note["host"] != socket.gethostname():
        return False
    try:
        os.kill(note["pid"], 0)
        state = Path(f"/proc/{note['pid']}/stat").read_text()
    except ProcessLookupError:
        return True
    except OSError:  # somebody else's process, or no /proc
        return False
    return state.rpartition(")")[2].split()[0] in "ZX"  # dead, and its parent has not asked yet


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated("torchrun ended this rank, since another one failed")


_kept: list[tuple[RunRecord, Path, int, int, Any]] = []
