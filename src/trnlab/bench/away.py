# SPDX-License-Identifier: Apache-2.0
"""Candidates that are recorded and judged on other machines: their files go there once by content, and their code
runs in contained processes there as it does here.

Any executor of `concurrent.futures` serves whose workers have this package; Dask's client has one. A worker that dies
is told as `BrokenExecutor`, as a process of this machine is: it takes what it worked on with it, and nothing else.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trnlab.bench.candidate import split
from trnlab.bench.judging import ProblemSpec
from trnlab.bench.recording import RecordingJob
from trnlab.errors import UsageError

MOST = 64 << 20  # bytes of the files of Python in a folder
Files = Mapping[str, bytes]  # of a folder, by name
Send = Callable[[Files], Any]
_ONE_AT_A_TIME = threading.Lock()  # a worker may have threads; what is contained is a copy of its whole process
_written: dict[str, Path] = {}  # by digest, in this process


@dataclass
class CandidateExecutor(Executor):
    """Runs functions of candidates' jobs and problems on an executor's workers."""

    workers: Executor
    send: Send = lambda files: files  # has files ready for all workers, and returns what stands for them in a call
    # whether an exception of a call says that its worker is gone
    lost: Callable[[BaseException], bool] = lambda error: isinstance(error, BrokenExecutor)
    _sent: dict[str, Any] = field(default_factory=dict)
    _digests: dict[Path, str] = field(default_factory=dict)

    def submit(self, function: Callable[..., Any], /, *words: Any, **more: Any) -> Future[Any]:
        """Call it there. Raises UsageError (TRN178) for folders that are too large to send."""
        folders = sorted({path.parent for path in _paths(words)})
        names = {str(folder): self._digest(folder) for folder in folders}
        files = [self._sent[digest] for digest in names.values()]
        outer: Future[Any] = Future()
        inner = self.workers.submit(called_there, function, words, names, *files)
        inner.add_done_callback(lambda done: self._tell(done, outer))
        return outer

    def _digest(self, folder: Path) -> str:
        """What a folder's files are called; they are sent where they are new."""
        if folder not in self._digests:
            files = _files(folder)
            told = hashlib.sha256(b"".join(b"%d %b %d " % (len(n), n.encode(), len(c)) + c for n, c in files.items()))
            digest = self._digests[folder] = told.hexdigest()
            if digest not in self._sent:
                self._sent[digest] = self.send(files)
        return self._digests[folder]

    def _tell(self, inner: Future[Any], outer: Future[Any]) -> None:
        if inner.cancelled():
            outer.set_exception(BrokenExecutor("it was cancelled"))
            return
        error = inner.exception()
        if error is None:
            outer.set_result(inner.result())
        else:
            outer.set_exception(BrokenExecutor(str(error)) if self.lost(error) else error)


def called_there(function: Callable[..., Any], words: Any, names: Mapping[str, str], *files: Files) -> Any:
    """What a worker does: the files of each folder, then the function on paths into them."""
    with _ONE_AT_A_TIME:
        places = {folder: _place(digest, each) for (folder, digest), each in zip(names.items(), files)}
        return function(*_moved(words, places))


def _place(digest: str, files: Files) -> Path:
    """The folder of these files in this process, which goes with it."""
    if digest not in _written:
        place = Path(tempfile.mkdtemp(prefix="trnlab-candidates-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        for name, content in files.items():
            (place / name).write_bytes(content)
        _written[digest] = place
    return _written[digest]


def _files(folder: Path) -> dict[str, bytes]:
    """Files of Python in a folder: candidates may import what lies beside them."""
    found, size = {}, 0
    for path in sorted(folder.glob("*.py")):
        if path.is_file():
            found[path.name] = path.read_bytes()
            size += len(found[path.name])
    if size > MOST:
        raise UsageError(
            "the files of Python beside a kernel are too large to send to workers",
            code="TRN178",
            limit=f"{MOST:,} bytes",
            got=f"{size:,} in {folder}",
            remedy="put the kernels into a folder of their own",
        )
    return found


def _paths(words: Any) -> Iterator[Path]:
    """Files that jobs and problems name, in whatever they lie."""
    if isinstance(words, list | tuple):
        for word in words:
            yield from _paths(word)
    elif isinstance(words, RecordingJob):
        yield Path(words.path).resolve()
    elif isinstance(words, ProblemSpec) and words.reference is not None:
        yield split(words.reference)[0].resolve()


def _moved(words: Any, places: Mapping[str, Path]) -> Any:
    """The same words with paths as they are on this machine."""
    if isinstance(words, list | tuple):
        return type(words)(_moved(word, places) for word in words)
    if isinstance(words, RecordingJob):
        path = Path(words.path).resolve()
        return replace(words, path=str(places[str(path.parent)] / path.name))
    if isinstance(words, ProblemSpec) and words.reference is not None:
        path, function = split(words.reference)
        path = path.resolve()
        name = str(places[str(path.parent)] / path.name)
        return replace(words, reference=f"{name}:{function}" if function else name)
    return words
