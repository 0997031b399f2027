# SPDX-License-Identifier: Apache-2.0
"""`python -m trnlab.runtime.jobs.forking`: the process that `forks` copies. It runs nothing and has no threads."""

from __future__ import annotations

import codecs
import contextlib
import gc
import importlib
import io
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import types
import warnings
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from typing import Any

from trnlab.runtime.jobs.forks import _SIZE, _STATUS

_OURS = (__file__, "<frozen runpy>", runpy.__file__)
_STANDARD = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def serve(handle: int, imports: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Wait for requests, and copy this process for each. Returns in a copy alone: the arguments of what it is now."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the copies
    line = socket.socket(fileno=handle)
    _import(imports)
    gc.collect()
    gc.freeze()  # so that collections of the copies do not write to pages that they share
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    running: dict[int, int] = {}
    waiting = selectors.DefaultSelector()
    for end in (line, woken):
        waiting.register(end, selectors.EVENT_READ)
    while True:
        ready = [key.fileobj for key, _ in waiting.select()]
        if woken in ready:
            woken.recv(4096)
            _reap(running)
        if line not in ready:
            continue
        request = _received(line)
        if request is None:  # who asked is gone
            signal.set_wakeup_fd(-1)
            sys.exit(0)
        (arguments, environment, folder), (told, *received) = request
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, interrupt)
            waiting.close()
            for end in (line, woken, wakes):
                end.close()
            for each in (*running.values(), told):
                os.close(each)
            _become(environment, folder, received)
            return list(arguments)
        running[pid] = told
        for each in received:
            os.close(each)
        line.sendall(_STATUS.pack(pid))


def _import(imports: Sequence[tuple[str, Sequence[str]]]) -> None:
    """As far as that goes: what cannot be imported is for the copies to say."""
    for module, names in imports:
        try:
            found = importlib.import_module(module)
            for name in names:
                if name != "*" and not hasattr(found, name):
                    importlib.import_module(f"{module}.{name}")
        except Exception:
            return


def _reap(running: dict[int, int]) -> None:
    """Tell how copies ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        told = running.pop(pid, None)
        if told is not None:
            with contextlib.suppress(OSError):  # who asked may not listen any more
                os.write(told, _STATUS.pack(os.waitstatus_to_exitcode(status)))
            os.close(told)


def _received(line: socket.socket) -> tuple[Any, list[int]] | None:
    head, files, _, _ = socket.recv_fds(line, _SIZE.size, 4)
    if len(head) < _SIZE.size:
        return None
    size = _SIZE.unpack(head)[0]
    parts = bytearray()
    while len(parts) < size:
        part = line.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return json.loads(parts), files


def _become(environment: dict[str, str], folder: str, files: Sequence[int]) -> None:
    """What a new process has of its own."""
    for number, each in zip((1, 2, 0), files, strict=False):
        os.dup2(each, number)
    for each in files:
        if each > 2:
            os.close(each)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    spawning = sys.modules.get("multiprocessing.process")
    if spawning is not None:  # where processes that it starts look for the script
        spawning.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    for number, (name, mode) in enumerate(_STANDARD):
        stream = _standard(number, mode)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    random.seed()
    if "numpy" in sys.modules:  # else all copies would draw the same
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    hook = sys.modules.get("trnlab.frontends.torch.autoload")
    if hook is not None:  # `import torch` ran it, in the environment of then
        hook.autoload()
    said = [each for each in environment.get("PYTHONWARNINGS", "").split(",") if each]
    if said != sys.warnoptions:
        sys.warnoptions[:] = said
        warnings._processoptions(said)  # type: ignore[attr-defined]


def _standard(number: int, mode: str) -> Any:
    """Standard input, output or error, with encoding and buffers as Python opens them."""
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    before = getattr(sys, _STANDARD[number][0])
    encoding = codecs.lookup(encoding).name if encoding else before.encoding if before is not None else "utf-8"
    errors = errors or (before.errors if before is not None else "strict")
    through = bool(os.environ.get("PYTHONUNBUFFERED"))
    raw: Any = open(number, mode + "b", 0 if through and mode == "w" else -1, closefd=False)  # noqa: SIM115
    getattr(raw, "raw", raw).name = f"<{_STANDARD[number][0]}>"
    prompt = mode == "w" and not through and (number == 2 or raw.isatty())
    stream: Any = io.TextIOWrapper(
        raw, encoding, "backslashreplace" if number == 2 else errors, line_buffering=prompt, write_through=through
    )
    stream.mode = mode
    return stream


def run(arguments: list[str]) -> None:
    """What `python ARGUMENTS` does, of a script, `-m MODULE` or `-c CODE`."""
    sys.excepthook = _shorter(sys.excepthook)
    kind, rest = arguments[0], arguments[1:]
    if kind == "-m":
        sys.argv = ["-m", *rest[1:]]
        _path(os.getcwd())
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if kind == "-c":
        sys.argv, file, source = ["-c", *rest[1:]], "<string>", rest[0].encode()
        _path("")
    else:
        sys.argv, file = arguments, os.path.abspath(kind)
        _path(os.path.dirname(os.path.realpath(kind)))
        main.__dict__.update(__file__=file, __loader__=SourceFileLoader("__main__", file), __cached__=None)
        with open(file, "rb") as opened:
            source = opened.read()
        tell_front_ends(file)
    exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)


def tell_front_ends(script: str) -> None:
    """A script is about to run: who was imported before it, and listens to what `import torch` would run, is told."""
    hook = sys.modules.get("trnlab.frontends.torch.autoload")
    if hook is not None:
        hook.script_starts(script)


def _path(first: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = first


def _shorter(hook: Any) -> Any:
    """Tracebacks begin with the script's own frames."""

    def show(kind: Any, error: Any, trace: Any) -> Any:
        while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
            trace = trace.tb_next
        return hook(kind, error, trace if error is None else error.with_traceback(trace).__traceback__)

    return show


if __name__ == "__main__":
    from trnlab.runtime.jobs import forking  # one module, whatever imports it

    forking.run(forking.serve(int(sys.argv[1]), json.loads(sys.argv[2])))
