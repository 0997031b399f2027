# SPDX-License-Identifier: Apache-2.0
"""The processes of a view: the first, which makes it and reads at the end what was written, and the script's own."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from trnlab.errors import TrnlabError
from trnlab.view import calls, effects, frames
from trnlab.view.changes import FileChange, changes
from trnlab.view.limits import LOOKS_S, UsageWatch, hold
from trnlab.view.line import ViewChannel, ViewProcess, ViewStderr
from trnlab.view.listening import EventWriter
from trnlab.view.namespaces import OverlayLayer, ViewLayout, build, leave, listening_sockets
from trnlab.view.request import ViewRequest

# Where a process can be copied there are these; the package is imported elsewhere, too.
fcntl, resource, select = (importlib.import_module(name) for name in ("fcntl", "resource", "select"))

_HIGH = 700  # from which on the files are numbered that are ours: scripts that close those they know leave them


def enter(request: ViewRequest, script: int, tells: int, ends: int) -> NoReturn:
    """Run a request in this process, which was made for it. script, tells, ends: files to talk through."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sockets = listening_sockets()
    if request.protection != effects.NAMESPACES:
        _first(request, None, (script, tells, ends), sockets)
    network = effects.NETWORK in request.allowed
    try:
        leave(network)
        first = os.fork()
    except OSError as error:
        frames.send(tells, "no", f"{error.strerror}: {error.filename}")
        os._exit(0)
    if first:
        for handle in (script, tells, ends):
            os.close(handle)
        os.waitpid(first, 0)
        os._exit(0)
    try:
        built = build(request.room, network, sockets, request.places)
        calls.hide()
    except OSError as error:
        frames.send(tells, "no", f"{error.strerror}: {error.filename}")
        os._exit(0)
    _first(request, built, (script, tells, ends), sockets)


def _first(
    request: ViewRequest, built: ViewLayout | None, files: tuple[int, int, int], sockets: list[str]
) -> NoReturn:
    """Start the script's process, wait for it, end what it left, and say what was written."""
    script, tells, ends = files
    log = _log(request)
    if built is None:
        with contextlib.suppress(OSError, AttributeError):
            calls.adopt_orphans()
    child = os.fork()
    if child == 0:
        try:
            _script(request, built, script, log, sockets)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)
    os.close(script)
    watch = UsageWatch(request.limits, built is not None) if request.limits is not None else None
    status, stopped = _waited(child, ends, watch)
    _end_all(alone=built is not None)
    found = _changes(request, built)
    os.lseek(log, 0, os.SEEK_SET)
    noted = b"".join(iter(lambda: os.read(log, 1 << 20), b""))
    made = effects.collected(request.protection, request.room if built is not None else 0, found, noted)
    made.allowed, made.stopped = sorted(request.allowed), stopped
    made.read_only = list(built.read_only) if built is not None else []
    with contextlib.suppress(OSError):
        frames.send(tells, "done", status, made.as_json(), list(_carried(request, built)))
    os._exit(0)


def _log(request: ViewRequest) -> int:
    """A file that several processes may add to at once."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("effects")
    else:
        handle, path = tempfile.mkstemp(dir=request.scratch or None)
        os.unlink(path)
    fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | os.O_APPEND)
    return handle


def _waited(child: int, ends: int, watch: UsageWatch | None) -> tuple[int, str]:
    """The status of the script's process, which is ended when the process outside wants that, or is gone, or the
    script uses too much: then with the limit that it passed."""
    watched: int | None = None
    with contextlib.suppress(OSError, AttributeError):
        watched = os.pidfd_open(child)
    looks = LOOKS_S if watch is not None else 0.05 if watched is None else None
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status, ""
        ready = select.select([ends] if watched is None else [ends, watched], [], [], looks)
        passed = watch.passed() if watch is not None else ""
        if passed or ends in ready[0]:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1], passed


def _end_all(alone: bool) -> None:
    """End every process that the script left behind. alone: whether all that can be seen are the script's."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            if alone:
                os.kill(-1, signal.SIGKILL)
            else:
                for process in _children():
                    os.kill(process, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except OSError:
            return


def _children() -> Iterable[int]:
    for words in Path(f"/proc/self/task/{os.getpid()}").glob("children"):
        yield from map(int, words.read_text().split())


def _changes(request: ViewRequest, built: ViewLayout | None) -> list[FileChange]:
    if built is not None:
        return changes(built.layers)
    if request.protection == effects.HOOKS:
        from trnlab.view.scratch import deleted

        found = changes([OverlayLayer("/", f"{request.scratch}/files", "")])
        written = {change.path for change in found}
        return found + [c for c in deleted(request.scratch) if c.path not in written]
    return []


def _carried(request: ViewRequest, built: ViewLayout | None) -> Iterable[tuple[str, bytes]]:
    """What is new or changed in folders that come back."""
    layers = built.layers if built is not None else [OverlayLayer("/", f"{request.scratch}/files", "")]
    for folder, endings in request.carried if request.protection != effects.OPEN else ():
        for layer in layers:
            inside = os.path.relpath(folder, layer.point)
            if not inside.startswith(".."):
                for path in sorted(Path(layer.upper, inside).rglob("*")):
                    if path.suffix in endings and path.is_file() and not path.is_symlink():
                        yield f"{folder}/{path.relative_to(Path(layer.upper, inside))}", path.read_bytes()


# -- the script's own process -------------------------------------------------------------------------------------
def _script(request: ViewRequest, built: ViewLayout | None, script: int, log: int, sockets: list[str]) -> NoReturn:
    high = min(_HIGH, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    script, log = (fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, high) for handle in (script, log))
    os.closerange(3, high)
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.dont_write_bytecode = True
    _forget_exits()
    line = ViewProcess.line = ViewChannel(script)
    sys.stdout, sys.stderr = open(os.devnull, "w", encoding="utf-8"), ViewStderr(line)  # noqa: SIM115  (for good)
    if built is not None:
        calls.let_go_of_powers()
    if request.limits is not None:
        hold(request.limits, request.room)
    guarded(request.protection, request.scratch, log, request.allowed, sockets)
    try:
        module, _, name = request.work.partition(":")
        try:
            line.say("result", getattr(importlib.import_module(module), name)(*request.given))
        except (TrnlabError, OSError) as error:
            line.say("error", _alone(error))
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGKILL)
        except BaseException:
            line.say("failed", traceback.format_exc())
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        gc.collect()
    finally:
        _really_exit(0)


def _forget_exits() -> None:
    """At its end the script runs what it has registered for that itself, and nothing of the process that was copied,
    which may remove its own temporary files then. Whom the script starts by `multiprocessing` it still waits for."""
    atexit._clear()
    started = sys.modules.get("multiprocessing.util")
    if started is not None:
        atexit.register(started._exit_function)


def _alone(error: BaseException) -> BaseException:
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


_really_exit = os._exit


def guarded(
    protection: str, scratch: str, log: int, allowed: frozenset[str], sockets: list[str] | None = None
) -> None:
    """Protect this machine from this process by what Python can do for that. sockets: of other processes, where this
    is the first of the script."""
    listener = EventWriter(log, allowed, protection == effects.NAMESPACES and effects.NETWORK not in allowed)
    if protection == effects.HOOKS:
        from trnlab.view.scratch import Scratch

        place = Scratch(scratch, listener)
        place.install()
        ViewProcess.to_write, ViewProcess.to_read = place.to_write, place.for_reading
    elif protection == effects.NAMESPACES:
        _join_file_systems()
    _watch_spawned(protection, scratch, log, allowed)
    if sockets is not None:
        listener.foreign = frozenset(sockets)
        _stay(os.getpid())
    listener.install()


def _stay(own: int) -> None:
    """Have `os._exit` of the script's first process end the script, and not the report on it."""

    def leave_script(status: int) -> NoReturn:
        if os.getpid() == own and threading.current_thread() is threading.main_thread():
            raise SystemExit(status)
        _really_exit(status)

    os._exit = leave_script


def _join_file_systems() -> None:
    """Have files move between folders that are one file system on this machine and several in the view."""
    for name in ("rename", "replace"):
        setattr(os, name, _across(getattr(os, name), _moved))
    os.link = _across(os.link, shutil.copy2)


def _across(original: Any, otherwise: Any) -> Any:
    def function(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(source, target, *args, **kwargs)
        except OSError as error:
            if error.errno != errno.EXDEV or any(value is not None for value in kwargs.values()):
                raise
            otherwise(source, target)
            return None

    function.__name__ = original.__name__
    return function


def _moved(source: Any, target: Any) -> None:
    """Copy a file or a folder to its new name, and remove the old one."""
    if os.path.isdir(source) and not os.path.islink(source):
        if os.path.isdir(target) and not os.path.islink(target):
            os.rmdir(target)
        shutil.copytree(source, target, symlinks=True)
        shutil.rmtree(source)
        return
    beside = os.fspath(target) + (b".trnlab-moved" if isinstance(target, bytes) else ".trnlab-moved")
    shutil.copy2(source, beside, follow_symlinks=False)
    os.rename(beside, target)
    os.unlink(source)


def _watch_spawned(protection: str, scratch: str, log: int, allowed: frozenset[str]) -> None:
    """Have the processes that `multiprocessing` starts anew, which are the script, protected as this one is."""
    from multiprocessing import util

    original: Any = util.spawnv_passfds
    words = (protection, scratch, log, sorted(allowed))

    def spawn(path: Any, args: Any, handles: Any) -> Any:
        args = list(args)
        if "-c" in args:
            where = args.index("-c") + 1
            args[where] = f"from trnlab.view.within import rejoin; rejoin(*{words!r}); {args[where]}"
        return original(path, args, sorted({*handles, log}))

    util.spawnv_passfds = spawn  # type: ignore[assignment]


def rejoin(protection: str, scratch: str, log: int, allowed: list[str]) -> None:
    """As the first thing in a process that `multiprocessing` started from one in a view."""
    sys.dont_write_bytecode = True
    guarded(protection, scratch, log, frozenset(allowed))
