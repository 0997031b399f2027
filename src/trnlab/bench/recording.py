# SPDX-License-Identifier: Apache-2.0
"""Records candidates, in the process that runs their code; what comes back is data alone."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from trnlab import policy
from trnlab.bench import variants
from trnlab.errors import TrnlabError, UsageError
from trnlab.nki import portable
from trnlab.nki.imports import install_imports
from trnlab.nki.kernel import Kernel
from trnlab.runtime import session
from trnlab.runtime.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_KERNEL, FAILED = "TRN840", "TRN842"
_USUAL = ("kernel", "optimized_kernel", "nki_kernel", "solution", "test")  # what harnesses call the one they take


@dataclass(frozen=True)
class RecordingJob:
    """What is to be recorded: a function of a file with arguments, on a chip."""

    path: str
    function: str
    arguments: tuple[Any, ...]  # arrays, whose contents count only where instructions depend on them, and constants
    constants: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""
    grid: int = 0  # cores; 0 for one, as the kernel stands there
    flags: str = ""  # of the hardware's compiler
    policies: tuple[str, ...] = ("",)  # under which it is recorded, as `--schedule` names them; "" is the usual one
    changed: Mapping[str, Any] = field(default_factory=dict)  # parameters with other values, see `variants`


@dataclass(frozen=True)
class CandidateRecording:
    """What became of a job: the recordings by policy, as `portable` has them, or what stands in the way."""

    contents: Mapping[str, bytes] = field(default_factory=dict)
    error: TrnlabError | None = None


def record_all(jobs: Sequence[RecordingJob]) -> list[CandidateRecording]:
    """Record each job. What one raises is its own; one that ends the process ends all."""
    install_imports()
    return [_recording(job) for job in jobs]


@contextmanager
def on_target(name: str) -> Iterator[None]:
    """Within the block kernels are for this target; "": for the one that the environment names, else for kernels'."""
    settings = Settings(target=name) if name else Settings.resolved(os.environ)
    with session.activate(session.for_kernels(settings)):
        yield


def _recording(job: RecordingJob) -> CandidateRecording:
    try:
        with on_target(job.target), _module(Path(job.path), job) as module:
            kernel = _kernel(module, job)
            found = {name: _recorded(kernel, job, name) for name in job.policies}
    except TrnlabError as error:
        return CandidateRecording(error=_alone(error))
    except Exception as error:
        return CandidateRecording(error=_failed(error, job.path))
    return CandidateRecording({name: content for name, content in found.items() if content})


def _recorded(kernel: Kernel, job: RecordingJob, name: str) -> bytes:
    """b"" under another than the usual policy that refuses the kernel for room."""
    from trnlab.nki.target import default_chip

    chip = kernel.chip or default_chip()
    with policy.use(name or None):
        try:
            trace = kernel.trace(*job.arguments, **job.constants)
        except TrnlabError:
            if not name:
                raise
            return b""
        return portable.dump(kernel, trace, chip)


@contextmanager
def _module(path: Path, job: RecordingJob) -> Iterator[ModuleType]:
    """The file as a module, as `python FILE` would find what lies beside it."""
    name = f"_candidate_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, _changed(path, job))
    if spec is None or spec.loader is None:
        raise UsageError("a candidate is no Python file", code=NO_KERNEL, got=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.pop(0)
        del sys.modules[name]


def _changed(path: Path, job: RecordingJob) -> Path:
    """The file, or one with other values of its parameters; it goes with the view."""
    if not job.changed:
        return path
    source = variants.edited(path.read_text(encoding="utf-8"), job.function, job.changed)
    place = Path(tempfile.mkdtemp(prefix="trnlab-")) / path.name
    place.write_text(source, encoding="utf-8")
    return place


def _kernel(module: ModuleType, job: RecordingJob) -> Kernel:
    """The kernel that a job names, or the only one of its file."""
    here = {n: v for n, v in vars(module).items() if isinstance(v, Kernel) and not n.startswith("__")}
    own = {n: v for n, v in here.items() if v.function.__module__ == module.__name__}
    names = [job.function] if job.function else [n for n in _USUAL if n in own][:1] or list(own)
    found = getattr(module, names[0], None) if len(names) == 1 else None
    if found is None:
        raise UsageError(
            "it is not clear which kernel is meant" if own else "the file has no kernel",
            code=NO_KERNEL,
            got=job.function or ", ".join(own) or job.path,
            limit=", ".join(own) or "a function under @nki.jit",
            remedy="name one: FILE:FUNCTION" if own else "decorate it with @nki.jit",
        )
    made: Kernel = found if isinstance(found, Kernel) else sys.modules["nki"].jit(found)
    made = made[job.grid] if job.grid else made
    if job.flags:
        made.flags = " ".join(filter(None, (made.flags, job.flags)))
    return made


def _alone(error: TrnlabError) -> TrnlabError:
    error.__traceback__ = error.__cause__ = error.__context__ = None
    for name in ("limit", "got"):
        value = getattr(error, name)
        setattr(error, name, value if isinstance(value, str | int | float | None) else str(value))
    return error


def _failed(error: BaseException, path: str) -> UsageError:
    """What the candidate's own code raised, at its own line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    where = f" at line {frames[-1].lineno}: {frames[-1].line}" if frames else ""
    return UsageError(
        f"the kernel's code raises {type(error).__name__}",
        code=FAILED,
        got=f"{error}{where}"[:2000],
        remedy="run it by itself with `trnlab run` to see where",
    )


def stand_in(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array of the same shape and format that says nothing of the contents."""
    return np.zeros(array.shape, array.dtype)
