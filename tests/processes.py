# SPDX-License-Identifier: Apache-2.0
"""New processes for tests, without waiting for imports: copies of one that has imported PyTorch and trnlab.

`run` and `start` take the place of `subprocess.run` and `subprocess.Popen` for commands that begin with
`sys.executable`: a script, `-m MODULE` or `-c CODE`, with arguments, environment, folder, input and output, exit
status and signals of their own, random state as a new process has it. `import torch` costs such a process nothing.

    ended = processes.run([sys.executable, "-m", "trnlab.cli.main", "isa"], cwd=tmp_path, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr

What is no such command (other programs, options of Python) and what hangs on the start of a process itself is for
`subprocess`: the seed of hashes is that of the process which is copied, and `"torch" in sys.modules` from the start.
Each kind of exit of the command line has one test with `subprocess`.

The process that is copied starts when it is first asked for, one for each environment that libraries read while they
are imported (OMP_NUM_THREADS, PYTHONPATH, TORCH_LOGS, ...); conftest.py ends them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from trnlab.runtime.jobs.forks import Forks, Process, possible

IMPORTS = (
    ("torch", ()),
    ("trnlab.cli.run", ()),
    ("trnlab.runtime.device", ()),
    ("torch.distributed", ()),
    ("trnlab.frontends.torch", ("compile_step",)),
    ("trnlab.compiler.pipeline", ()),
    ("torch._inductor.compile_fx", ()),
    ("torch.distributed.pipelining", ()),
    ("torch.distributed.optim", ()),
    ("torch.distributed.checkpoint.state_dict", ()),
    ("numba.np.arraymath", ()),
)
_READ_EARLY = (
    "GOMP_",
    "KMP_",
    "LANG",
    "LC_",
    "LD_",
    "MKL_",
    "NUMBA_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "TORCH_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
)
_READ_BY_EACH = {"PYTHONWARNINGS", "PYTHONUNBUFFERED", "PYTHONIOENCODING"}
_ready: dict[tuple[tuple[str, str], ...], Forks] = {}
_lock = threading.Lock()


class Started(Process):
    """What `subprocess.Popen` returns, as far as tests ask for it."""

    stdin = stdout = stderr = None


def start(args, *, cwd=None, env=None, stdin=None, stdout=None, stderr=None, text=False):
    """As `subprocess.Popen`. Streams: None (those of this process), PIPE, DEVNULL, STDOUT, or a file."""
    args = [os.fspath(each) for each in args]
    environment = dict(os.environ if env is None else env)
    if not _can(args):
        return subprocess.Popen(args, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, text=text)
    ours, theirs, mode = [None] * 3, [], "" if text else "b"
    opened = []
    for number, asked in enumerate((stdin, stdout, stderr)):
        if asked == subprocess.PIPE:
            reads, writes = os.pipe()
            kept, given = (writes, reads) if number == 0 else (reads, writes)
            ours[number] = os.fdopen(kept, ("w" if number == 0 else "r") + mode)
            opened.append(given)
        elif asked == subprocess.DEVNULL:
            opened.append(given := os.open(os.devnull, os.O_RDWR))
        elif asked == subprocess.STDOUT:
            given = theirs[1]
        else:
            given = number if asked is None else asked if isinstance(asked, int) else asked.fileno()
        theirs.append(given)
    try:
        process = _of(environment).start(
            args[1:], environment, [*theirs[1:], theirs[0]], os.fspath(cwd or os.getcwd())
        )
    finally:
        for each in opened:
            os.close(each)
    process.__class__ = Started
    process.stdin, process.stdout, process.stderr = ours
    return process


def run(
    args, *, cwd=None, env=None, input=None, timeout=None, text=True, capture_output=True, stderr=None, check=False
):
    """As `subprocess.run`; output is captured, as text, unless it is told otherwise."""
    args = [os.fspath(each) for each in args]
    if not _can(args):
        streams = {} if stderr is None else {"stdout": subprocess.PIPE, "stderr": stderr}
        return subprocess.run(
            args,
            cwd=cwd,
            env=env,
            input=input,
            timeout=timeout,
            text=text,
            check=check,
            capture_output=capture_output and not streams,
            **streams,
        )
    pipe = subprocess.PIPE if capture_output else None
    process = start(
        args,
        cwd=cwd,
        env=env,
        stdin=None if input is None else subprocess.PIPE,
        stdout=pipe,
        stderr=pipe if stderr is None else stderr,
        text=text,
    )
    try:
        said = communicate(process, input, timeout)
    finally:
        process.kill()
        for each in (process.stdout, process.stderr):
            if each is not None:
                each.close()
    ended = subprocess.CompletedProcess(args, process.returncode, *said)
    if check:
        ended.check_returncode()
    return ended


def communicate(process, input=None, timeout=None):
    """As `Popen.communicate`, of what `start` returned: all that it wrote to its output and its error."""
    if isinstance(process, subprocess.Popen):
        return process.communicate(input, timeout)
    said = {}

    def read(source):
        with source:
            said[source] = source.read()

    readers = [
        threading.Thread(target=read, args=(each,), daemon=True)
        for each in (process.stdout, process.stderr)
        if each is not None
    ]
    for reader in readers:
        reader.start()
    if process.stdin is not None:
        try:
            with process.stdin:
                process.stdin.write(input or ("" if "b" not in process.stdin.mode else b""))
        except BrokenPipeError:
            pass  # it ended without reading all
    process.wait(timeout)
    for reader in readers:
        reader.join()
    return said.get(process.stdout), said.get(process.stderr)


def _can(args):
    return possible() and args[0] == sys.executable and (args[1] in ("-m", "-c") or Path(args[1]).suffix == ".py")


def _of(environment):
    early = {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_EARLY) and name not in _READ_BY_EACH
    }
    key = tuple(sorted(early.items()))
    with _lock:
        if key not in _ready:
            usual = {
                name: value for name, value in os.environ.items() if not name.startswith((*_READ_EARLY, "TRNLAB_"))
            }
            _ready[key] = Forks(IMPORTS, {**usual, **early})
        return _ready[key]


def end():
    """At the end of a test run."""
    for each in _ready.values():
        each.close()
    _ready.clear()
