# SPDX-License-Identifier: Apache-2.0
"""What earlier calls recorded and timed, by content: sources, arguments, policy, and the code that makes the result.

A recording is kept as an executable file (`runtime.serialize`), a result as a row of JSON. Where the folder cannot be
written everything is made anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnlab.errors import CacheError
from trnlab.policy import Policy, chosen
from trnlab.program.routine import Program, Routine
from trnlab.runtime.cache import serialize
from trnlab.runtime.cache.admission import require_sound_routine
from trnlab.storage.content import ContentStore
from trnlab.validation.sources import results
from trnlab.validation.sources.catalogue import SourceKernel
from trnlab.validation.sources.results import KernelRow
from trnlab.validation.sources.versions import MODEL, RECORDING, version


@dataclass(frozen=True, slots=True)
class StoredRecording:
    """A recording of a kernel of a dialect. off: options of the policy that the kernel itself switches off."""

    routine: Routine
    dialect: str
    off: tuple[str, ...]

    def policy(self, chip: str) -> Policy:
        """What the hardware's compiler is taken to make of it, here and now."""
        return chosen(chip, self.dialect).with_options(**dict.fromkeys(self.off, False))


class RecordingCache:
    """A folder of recordings and results; None for a folder keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._store = ContentStore(folder)

    def recordings(self, content: list[Any], make: Callable[[], list[StoredRecording]]) -> list[StoredRecording]:
        """The recordings of a kernel with this content, made by `make` where they are not kept."""
        path = self._store.file([version(RECORDING), content], "recording")
        kept = self._store.read(path)
        if kept is not None and path is not None:
            with contextlib.suppress(CacheError, KeyError, TypeError, ValueError):
                return _recordings(serialize.loads(kept, path.name), path.name)
        made = make()
        if path is not None and made:
            first, kinds = made[0].routine, [[r.dialect, list(r.off)] for r in made]
            program = Program(first.name, first.target, tuple(r.routine for r in made), (), (), (), ())
            self._store.write(path, *serialize.dump(program, {"recordings": kinds}))
        return made

    def result(self, kernel: SourceKernel, content: list[Any], make: Callable[[], KernelRow]) -> KernelRow:
        """The row of a kernel with this content, made where it is not kept."""
        path = self._store.file([version(MODEL), content])
        found = self._store.record(path)
        if found is not None:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return results.from_plain(kernel, found)
        row = make()
        self._store.write_record(path, results.to_plain(row))
        return row


def _recordings(stored: serialize.Stored, name: str) -> list[StoredRecording]:
    """Raises CacheError for a recording that breaks a rule of routines, KeyError and others for what is none."""
    kinds = stored.metadata["recordings"]
    for routine in stored.program.routines:
        require_sound_routine(routine, name)
    return [StoredRecording(r, dialect, tuple(off)) for r, (dialect, off) in zip(stored.program.routines, kinds)]
