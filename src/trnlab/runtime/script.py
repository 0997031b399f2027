# SPDX-License-Identifier: Apache-2.0
"""`trnlab run`: somebody's training script in this process, under a session, with its run kept in a folder."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

import trnlab
from trnlab import profile
from trnlab.errors import TrnlabError, UsageError
from trnlab.files import why
from trnlab.runtime.notices import say, tell
from trnlab.runtime.run import Run, new_folder
from trnlab.runtime.session import Session, activate

INTERRUPTED, TERMINATED = 130, 143
_OURS = str(Path(trnlab.__file__).parent)
_RUNPY = ("<frozen runpy>", runpy.__file__)


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived: the run ends as on Ctrl-C."""


def run_script(script: Path, arguments: Sequence[str], session: Session, out: Path | None) -> int:
    """Run `script` as `python SCRIPT ARGS` would; returns the exit status.

    The script's own exceptions are shown as its own traceback (status 1), ours as their message (status 2). Whatever
    happens, the run's folder is left with a summary; when anything ran, with a report and a trace too.
    Raises TrnlabError for what is wrong before the script starts.
    """
    check_script(script)
    folder = out if out is not None else new_folder(Path("runs"), script.stem)
    run = session.run = Run(folder, session, script.resolve(), arguments)
    with activate(session), _sigterm():
        status = _execute(script, arguments)
        outcome = {0: "complete", INTERRUPTED: "interrupted", TERMINATED: "interrupted"}.get(status, "failed")
        return max(status, _finish(run, outcome))


def check_script(script: Path) -> None:
    """Raise UsageError, in one line, when the script cannot be read."""
    try:
        with script.open("rb"):
            pass
    except OSError as error:
        raise UsageError(
            f"the script {str(script)!r} cannot be read: {why(error)}", code="TRN123", remedy="check the path"
        ) from error


def _finish(run: Run, outcome: str) -> int:
    """Write what the run leaves, and show it if anything happened; returns the exit status of that."""
    try:
        record = run.finish(outcome)
        if record["steps"] or record["instructions"]:
            profile.render(run.folder)
            print(f"\n{profile.show(run.folder)}", flush=True)
    except KeyboardInterrupt:
        say(f"interrupted while the report was written; {run.folder} holds a partial summary")
        return INTERRUPTED
    except TrnlabError as error:
        tell(error)
        return 2
    return 0


def _execute(script: Path, arguments: Sequence[str]) -> int:
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as exit:
        return _exit_status(exit)
    except Terminated:
        return TERMINATED
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BaseException as error:
        return _show(error)
    return 0


def _exit_status(exit: SystemExit) -> int:
    if exit.code is None or isinstance(exit.code, int):
        return exit.code or 0
    print(exit.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> int:
    ours = _our_error(error)
    if ours is not None:
        tell(ours)
        return 2
    _trim(error)
    traceback.print_exception(error)
    return 1


def _our_error(error: BaseException | None) -> TrnlabError | None:
    """The TrnlabError that `error` is or wraps: frameworks put their own exception around those of a backend."""
    while error is not None and not isinstance(error, TrnlabError):
        error = getattr(error, "inner_exception", None) or error.__cause__
    return error


def _trim(error: BaseException) -> None:
    """Leave out of the traceback what lies above the script, and our frames unless the fault is in one of them."""
    frames = list(_frames(error.__traceback__))
    while frames and (_is_ours(frames[0]) or frames[0].tb_frame.f_code.co_filename in _RUNPY):
        frames.pop(0)
    if frames and not _is_ours(frames[-1]):
        frames = [f for f in frames if not _is_ours(f)]
    head: TracebackType | None = None
    for frame in reversed(frames):
        head = TracebackType(head, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = head


def _frames(head: TracebackType | None) -> Iterator[TracebackType]:
    while head is not None:
        yield head
        head = head.tb_next


def _is_ours(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_OURS + os.sep)


@contextmanager
def _sigterm() -> Iterator[None]:
    """Within the block SIGTERM ends the script as Ctrl-C does, so that the run's summary is written."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
