# SPDX-License-Identifier: Apache-2.0
"""What an entry has to be before it is used: a program whose every rule holds, of the graph that was asked for.

A digest says that a file is as it was written, not who wrote it. The simulator's compiled loops check nothing, so a
program from a file is verified as one that the builder never saw (`program.verify`), whoever wrote it. That it
computes what its graph says, only a key shows, see `seals`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from trnlab import chips
from trnlab.chips.spec import Chip
from trnlab.errors import CacheError, TrnlabError
from trnlab.fabric import cluster
from trnlab.program.routine import Program, Routine
from trnlab.program.verify import verify_program, verify_routine
from trnlab.runtime.cache.serialize import Stored, damaged

# What the rules raise for values that no rule thought of: a program of them is none either.
_OTHER = (ValueError, KeyError, TypeError, IndexError, AttributeError, AssertionError, ArithmeticError, MemoryError)
# Fields of metadata that follow from what the key is of. Names are not among them: graphs that differ in no more than
# names share an entry.
ASKED = ("target", "options", "inputs", "outputs", "aliases", "model_flops", "asked")
_FIELDS: Mapping[str, type[Any] | tuple[type[Any], ...]] = {
    "key": str,
    "name": str,
    "target": str,
    "created": str,
    "options": dict,
    "parts": dict,
    "inputs": list,
    "outputs": list,
    "aliases": list,
    "compile_seconds": (int, float),
    "model_flops": (int, float),
    "asked": dict,
}


def require_metadata(metadata: Mapping[str, Any], key: str, name: str) -> None:
    """Raises CacheError (TRN601) where a field is of another kind than entries have, or it is of another key."""
    for field, kind in _FIELDS.items():
        if field in metadata and not isinstance(metadata[field], kind):
            raise damaged(name, f"its {field} is a {type(metadata[field]).__name__}")
    if not all(isinstance(part, str) for part in metadata.get("parts", {}).values()):
        raise damaged(name, "its parts are of another kind")
    if metadata.get("key") != key:
        raise damaged(name, "it holds another executable")


def require_complete(metadata: Mapping[str, Any], name: str) -> None:
    """Raises CacheError (TRN601) where something is missing that lists of entries show."""
    if not {"name", "target", "created", "compile_seconds", "parts", "options"} <= {*metadata}:
        raise damaged(name, "its header is of another kind")


def admit(stored: Stored, name: str, chip: Chip | None = None, wanted: Mapping[str, Any] | None = None) -> None:
    """Raises CacheError (TRN601) for an entry that is not to be used.

    name: of the file. chip: that it is to run on, else that of its target. wanted: metadata that it has to have.
    """
    if wanted is not None:
        expected = json.loads(json.dumps({field: wanted[field] for field in ASKED}))
        for field, value in expected.items():
            if stored.metadata.get(field) != value:
                raise damaged(name, f"its {field} is of another graph")
        if not _is_of(stored.program, stored.metadata):
            raise damaged(name, "its program is of another graph")
    _require_runnable(stored.program, name)
    require_sound(stored.program, name, chip, _empty(stored))


def _require_runnable(program: Program, name: str) -> None:
    """What is decided where a program is run is not decided in it, and all of its tensors have a place."""
    if (program.streams, program.faults, program.changes) != (1, (), ()):
        raise damaged(name, "its program says how it is to be run")
    given = {*program.inputs, *program.outputs, *program.constants}
    lost = [t.name for t in program.tensors if t.id not in given and t.address < 0]
    if lost:
        raise damaged(name, f"tensor {lost[0]!r} of its program is neither bound nor placed")


def require_sound(program: Program, name: str, chip: Chip | None = None, empty: Collection[int] = ()) -> None:
    """Raises CacheError (TRN601) for a program that breaks a rule. empty: see `verify_program`."""
    try:
        if program.ranks > 1 or program.cluster:
            cluster.parse(program.cluster)
        verify_program(program, chip or chips.get(program.target), empty)
    except (TrnlabError, RecursionError, *_OTHER) as error:
        raise _refused(name, error) from error


def require_sound_routine(routine: Routine, name: str, chip: Chip | None = None) -> None:
    """The same for a routine by itself."""
    try:
        verify_routine(routine, chip or chips.get(routine.target))
    except (TrnlabError, RecursionError, *_OTHER) as error:
        raise _refused(name, error) from error


def _refused(name: str, error: BaseException) -> CacheError:
    said = f"{error.code}, {error.what}" if isinstance(error, TrnlabError) else type(error).__name__
    return damaged(name, f"it breaks a rule of programs ({said})")


def _empty(stored: Stored) -> set[int]:
    """Outputs of the graph that have no elements; on the chip they have one, which means nothing."""
    shapes = stored.metadata.get("outputs", ())
    return {out for out, shape in zip(stored.program.outputs, shapes) if isinstance(shape, list) and 0 in shape}


def _is_of(program: Program, metadata: Mapping[str, Any]) -> bool:
    """Whether the program takes and gives as many values, of as many elements, as its metadata says."""
    if len(program.inputs) != len(metadata["inputs"]) or len(program.outputs) != len(metadata["outputs"]):
        return False
    return bool(program.name == metadata["name"] and program.target == metadata["target"])
