# SPDX-License-Identifier: Apache-2.0
"""`trnlab run`: somebody's script in this process, under a session, with its run kept in a folder."""

from __future__ import annotations

import contextlib
import importlib.util
import linecache
import os
import pkgutil
import re
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, TracebackType

import trnlab
from trnlab import profile
from trnlab.errors import Location, TrnlabError, UsageError
from trnlab.files import why
from trnlab.runtime.jobs import ranks
from trnlab.runtime.jobs.forking import tell_front_ends
from trnlab.runtime.notices import say, tell
from trnlab.runtime.run import RunRecord, new_folder
from trnlab.runtime.session import Session, activate

INTERRUPTED, TERMINATED = 130, 143
_OURS = str(Path(trnlab.__file__).parent)
_RUNPY = ("<frozen runpy>", runpy.__file__)


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived: the run ends as on Ctrl-C."""


def contents(path: Path) -> bytes:
    """All bytes of a file that a command was given. Raises UsageError (TRN123) for one that cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} cannot be read: {why(error)}", code="TRN123", remedy="check the path"
        ) from error


@dataclass(frozen=True)
class Script:
    """What to run: `python path arguments`, or `python -m path arguments` for a module."""

    path: Path
    arguments: Sequence[str] = ()
    module: bool = False

    @property
    def file(self) -> Path:
        """The file that is run. Raises UsageError, in one line, when it cannot be read."""
        found = self._module_file() if self.module else self.path
        try:
            with found.open("rb"):
                pass
        except OSError as error:
            raise UsageError(
                f"the script {str(found)!r} cannot be read: {why(error)}", code="TRN123", remedy="check the path"
            ) from error
        return found.resolve()

    def _module_file(self) -> Path:
        """As `python -m` finds it: the module, or __main__ of the package.

        What lies around it is not imported here but in the run, with its arguments and its session.
        """
        name = str(self.path)
        if sys.path[:1] != [str(Path.cwd())]:
            sys.path.insert(0, str(Path.cwd()))
        spec = _located(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = _located(f"{name}.__main__")
        if spec is None or spec.origin is None:
            raise UsageError(
                f"there is no module {name!r} to run", code="TRN123", remedy="check its name, or leave out -m"
            )
        return Path(spec.origin)


def _located(name: str) -> ModuleSpec | None:
    """Where a module is, by the folders of the packages around it, of which none is imported."""
    full, *inner = name.split(".")
    spec = None
    with contextlib.suppress(ValueError):  # what is there has no place, as __main__
        spec = importlib.util.find_spec(full)
    for part in inner:
        full = f"{full}.{part}"
        spec = None if spec is None else _within(spec.submodule_search_locations or (), full)
    return spec


def _within(places: Iterable[str], name: str) -> ModuleSpec | None:
    """A module in the first of these folders that has it; or the folders of a package without a file."""
    portions: list[str] = []
    for place in places:
        finder = pkgutil.get_importer(place)
        spec = None if finder is None else finder.find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        portions += (spec.submodule_search_locations or ()) if spec is not None else ()
    spec = ModuleSpec(name, None)
    spec.submodule_search_locations = portions
    return spec if portions else None


def run_script(script: Script, session: Session, out: Path | None) -> int:
    """Run a script as Python would; returns the exit status.

    The script's own exceptions are shown as its own traceback (status 1), ours as their message (status 2). Whatever
    happens, the run's folder is left with a summary; when anything ran, with a report and a trace too.
    Raises TrnlabError for what is wrong before the script starts.
    """
    return record(script.file, script.path.stem, script.arguments, session, out, lambda: execute(script))


def record(
    file: Path, name: str, arguments: Sequence[str], session: Session, out: Path | None, work: Callable[[], int]
) -> int:
    """Do `work`, which returns an exit status, as the run of `file`; see `run_script` for what it leaves."""
    folder = out if out is not None else new_folder(Path("runs"), name)
    run = session.run = RunRecord(folder, session, file, arguments)
    with activate(session), _sigterm(), _told(run):
        status = work()
        outcome = {0: "complete", INTERRUPTED: "interrupted", TERMINATED: "interrupted"}.get(status, "failed")
        return max(status, _finish(run, outcome))


def _finish(run: RunRecord, outcome: str) -> int:
    """Write what the run leaves, and show it if anything happened; returns the exit status of that."""
    try:
        if outcome == "complete":
            run.session.settle()
        if run.ranks:
            run.beacon.end()
            ranks.leave(run.folder, run.ranks)
            return 0
        record = run.finish(outcome)
        if record["instructions"] or record.get("kernels"):
            profile.render(run.folder)
            if int(os.environ.get("RANK") or 0) == 0:
                print(f"\n{profile.show(run.folder)}", flush=True)
            for line in run.session.counters.shapes.advice():
                say(line)
        elif outcome == "complete":
            say(nothing_ran(run))
    except KeyboardInterrupt:
        say(f"interrupted while the report was written; {run.folder} holds a partial summary")
        return INTERRUPTED
    except TrnlabError as error:
        tell(error)
        return 2
    return 0


def nothing_ran(run: RunRecord) -> str:
    """What to say when a script came to its end without using the device, with the likely reason."""
    counted = run.session.counters.host
    host = sum(counted.totals().values())
    compiled = any("(" in name for names in counted.by_name().values() for name in names)  # jax.jit(step)
    if re.search(r"^\s*def test_", run.script.read_text(errors="replace"), re.MULTILINE):
        reason = f"it only defines tests: trnlab run -m pytest {run.script.name}"
    elif compiled:
        reason = "of what the script compiles, the chip has no form, as the lines above say"
    elif host:
        reason = (
            f"all {host:,} operators on neuron tensors ran on the host, which is eager mode: compile them, see "
            "compile_step and torch.compile"
        )
    else:
        reason = (
            "call a kernel (@nki.jit) on arrays, compile a model on device 'neuron', or a function with jax.jit or "
            "tf.function"
        )
    return f"nothing ran on the simulated chip; {reason}"


def execute(script: Script) -> int:
    """Run a script as Python would, under the session that is active; returns its exit status."""
    sys.argv = [str(script.path), *script.arguments]
    sys.path.insert(0, str(Path.cwd() if script.module else script.file.parent))
    tell_front_ends(str(script.file))
    try:
        if script.module:
            runpy.run_module(str(script.path), run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(script.path), run_name="__main__")
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
        return int(exit.code or 0) & 0xFF  # as much of it as a process can return
    print(exit.code, file=sys.stderr)
    return 1


on_failure: list[Callable[[BaseException], object]] = []  # called with what a script raised and did not catch


@contextmanager
def _told(run: RunRecord) -> Iterator[None]:
    """Within the block the run hears what the script raised."""
    on_failure.append(run.failed)
    try:
        yield
    finally:
        on_failure.remove(run.failed)


def _show(error: BaseException) -> int:
    for callback in on_failure:
        callback(error)
    ours = our_error(error)
    if ours is not None:
        tell(ours)
        return 2
    _trim(error)
    traceback.print_exception(error)
    if isinstance(error, ValueError) and "environment variable RANK expected" in str(error):
        say("the script is one rank of several: start them with trnlab run --ranks N --target TARGET, or torchrun")
    return 1


def our_error(error: BaseException | None) -> TrnlabError | None:
    """The TrnlabError that `error` is or wraps: frameworks put their own exception around those of a backend."""
    seen: list[BaseException] = []
    while error is not None and not any(error is known for known in seen):
        if isinstance(error, TrnlabError):
            return error
        seen.append(error)
        inner = getattr(error, "inner_exception", None)
        error = inner if isinstance(inner, BaseException) else error.__cause__
    return None


def failure(error: BaseException, code: str) -> TrnlabError:
    """What a script raised, for commands that run it for another purpose: our own error as it is, others as a
    UsageError with the place in the script."""
    ours = our_error(error)
    if ours is not None:
        return ours
    _trim(error)
    frames = list(_frames(error.__traceback__))
    where = None
    if frames:
        file, line = frames[-1].tb_frame.f_code.co_filename, frames[-1].tb_lineno
        where = Location(file, line, frames[-1].tb_frame.f_code.co_name, linecache.getline(file, line).strip())
    return UsageError(
        f"the script failed with {type(error).__name__}: {error}",
        code=code,
        where=where,
        remedy="run it with `trnlab run` first",
    )


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
