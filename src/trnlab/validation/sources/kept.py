# SPDX-License-Identifier: Apache-2.0
"""What earlier calls recorded and timed, by content: sources, arguments, policy, and the code that makes the result.

A recording is kept as an executable file (`runtime.serialize`), a result as a row of JSON. Where the folder cannot be
written everything is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trnlab.errors import CacheError
from trnlab.files import write_atomic
from trnlab.program.routine import Program, Routine
from trnlab.runtime import serialize
from trnlab.validation.sources import results
from trnlab.validation.sources.catalogue import SourceKernel
from trnlab.validation.sources.results import Row
from trnlab.validation.sources.versions import MODEL, RECORDING, version


class Kept:
    """A folder of recordings and results; None for a folder keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def routines(self, content: list[Any], make: Callable[[], list[Routine]]) -> list[Routine]:
        """The routines of a kernel with this content, recorded by `make` where they are not kept."""
        path = self._path(content, version(RECORDING), "recording")
        if path is not None:
            with contextlib.suppress(OSError, CacheError):
                return list(serialize.load(path).program.routines)
        made = make()
        if path is not None and made:
            program = Program(made[0].name, made[0].target, tuple(made), (), (), (), ())
            self._write(path, *serialize.dump(program, {}))
        return made

    def result(self, kernel: SourceKernel, content: list[Any], make: Callable[[], Row]) -> Row:
        """The row of a kernel with this content, made where it is not kept."""
        path = self._path(content, version(MODEL), "json")
        if path is not None:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                return results.from_plain(kernel, json.loads(path.read_bytes()))
        row = make()
        if path is not None:
            self._write(path, json.dumps(results.to_plain(row)).encode())
        return row

    def _path(self, content: list[Any], code: str, suffix: str) -> Path | None:
        if self.folder is None:
            return None
        text = json.dumps([code, content], sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.{suffix}"

    def _write(self, path: Path, *parts: bytes | memoryview) -> None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, *parts)
