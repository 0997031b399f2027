# SPDX-License-Identifier: Apache-2.0
"""A run's folder, read back: its summary, and the instructions of one step with their times.

The files are described in `docs/summary.md`.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trnlab import timeline
from trnlab.documents.notebooks import ShownInNotebooks
from trnlab.errors import RunError
from trnlab.files import json_of
from trnlab.profile import schema
from trnlab.timeline import Timeline

TOGETHER = "together.json"  # a step of all ranks: `runtime.lanes`
SCHEMA, VERSION, FILE = "trnlab.summary", 2, "summary.json"
DETAILS, DETAILS_VERSION = "trnlab.details", 2

Ints = np.ndarray[Any, np.dtype[Any]]
Source = tuple[str, str]  # "file:line in function", and the text of that line


@dataclass(frozen=True)
class Occupancy:
    """Bytes in use of a memory: `bytes` from each of `time` on, in picoseconds."""

    capacity: int
    time: Ints
    bytes: Ints


@dataclass(frozen=True)
class Step:
    """One training step. `text`, `source` and `buffer` have one row per instruction, indices into `texts`, `sources`
    and `buffers`; a buffer is the tensor that the instruction waited for, -1 for none."""

    timeline: Timeline
    texts: tuple[str, ...]
    sources: tuple[Source, ...]
    text: Ints
    source: Ints
    critical: Ints  # the instructions of the longest chain of dependencies, first to last
    buffers: tuple[str, ...]
    buffer: Ints
    occupancy: Mapping[str, Occupancy]  # of "sbuf" and "psum"
    spilled: tuple[int, int] = (0, 0)  # bytes saved to and reloaded from scratch memory in HBM


@dataclass(frozen=True)
class Profile(ShownInNotebooks):
    """A run. `step` is None when it ended before anything could be timed."""

    folder: Path
    summary: dict[str, Any]
    step: Step | None
    # one of each kind of step, as in the summary's `step_kinds`; empty when there is only one
    kinds: tuple[Step, ...] = ()
    together: dict[str, Any] | None = None  # a step of all ranks, where there are several


def load(folder: Path) -> Profile:
    """Read the folder of a run. Raises RunError when there is none, or something in it is damaged."""
    summary = read_summary(folder)
    known: dict[str, Step] = {}

    def load_all(entries: Sequence[dict[str, Any]]) -> Step | None:
        for key in {entry["executable"] for entry in entries} - set(known):
            known[key] = _load_step(folder, key)
        steps = [known[entry["executable"]] for entry in entries for _ in range(entry["times"])]
        return join(steps) if steps else None

    step, kinds = load_all(summary.get("step", ())), summary.get("step_kinds", ())
    each = [load_all(kind["executables"]) for kind in kinds] if len(kinds) > 1 else []
    return Profile(folder, summary, step, tuple(kind for kind in each if kind is not None), _together(folder))


def _together(folder: Path) -> dict[str, Any] | None:
    """A step of all ranks; nothing where there is none, or its file is not whole."""
    try:
        found = json_of((folder / TOGETHER).read_bytes())
        schema.check_together(found)
    except (OSError, ValueError):
        return None
    return dict(found)


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a run's folder. Raises RunError when there is none, or it is not one."""
    path = folder / FILE
    if not folder.is_dir():
        raise RunError(f"there is no folder {str(folder)!r}", code="TRN810", remedy="name the folder of a run")
    if not path.exists():
        raise RunError(
            f"{str(folder)!r} holds no {FILE}",
            code="TRN810",
            remedy="name the folder of a run, as `trnlab run` printed it",
        )
    summary = _read(path, SCHEMA, VERSION)
    try:
        schema.check_summary(summary)
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    return summary


def join(steps: Sequence[Step]) -> Step:
    """Steps one after the other as one."""
    if len(steps) == 1:
        return steps[0]
    instructions = _offsets([len(s.timeline) for s in steps])
    texts, sources = _offsets([len(s.texts) for s in steps]), _offsets([len(s.sources) for s in steps])
    buffers = _offsets([len(s.buffers) for s in steps])
    return Step(
        timeline=_join_timelines([s.timeline for s in steps]),
        texts=tuple(text for s in steps for text in s.texts),
        sources=tuple(source for s in steps for source in s.sources),
        text=np.concatenate([s.text + first for s, first in zip(steps, texts)]),
        source=np.concatenate([s.source + first for s, first in zip(steps, sources)]),
        critical=np.concatenate([s.critical + first for s, first in zip(steps, instructions)]),
        buffers=tuple(name for s in steps for name in s.buffers),
        buffer=np.concatenate([np.where(s.buffer < 0, -1, s.buffer + first) for s, first in zip(steps, buffers)]),
        occupancy=_join_occupancy(steps),
        spilled=(sum(s.spilled[0] for s in steps), sum(s.spilled[1] for s in steps)),
    )


def _join_occupancy(steps: Sequence[Step]) -> dict[str, Occupancy]:
    times = _offsets([s.timeline.total for s in steps])
    return {
        name: Occupancy(
            max(s.occupancy[name].capacity for s in steps),
            np.concatenate([s.occupancy[name].time + first for s, first in zip(steps, times)]),
            np.concatenate([s.occupancy[name].bytes for s in steps]),
        )
        for name in steps[0].occupancy
        if all(name in s.occupancy for s in steps)
    }


def _join_timelines(parts: list[Timeline]) -> Timeline:
    times = _offsets([t.total for t in parts])
    rows, ops, calls = (_offsets([len(x) for x in column]) for column in zip(*((t, t.ops, t.calls) for t in parts)))
    columns: dict[str, list[Ints]] = {name: [] for name in parts[0].columns()}
    for i, part in enumerate(parts):
        shift = {
            **dict.fromkeys(("start", "end", "begin", "done"), times[i]),
            **dict.fromkeys(("blocker", "held"), rows[i]),
            "op": ops[i],
            "call": calls[i],
        }
        for name, column in part.columns().items():
            moved = column + shift[name] if name in shift else column
            columns[name].append(np.where(column < 0, column, moved) if name in ("blocker", "held") else moved)
    joined: dict[str, Any] = {name: np.concatenate(column) for name, column in columns.items()}
    return replace(
        parts[0],
        total=sum(t.total for t in parts),
        ops=tuple(op for t in parts for op in t.ops),
        calls=tuple(replace(c, first=c.first + first) for t, first in zip(parts, rows) for c in t.calls),
        **joined,
    )


def _offsets(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


def _load_step(folder: Path, key: str) -> Step:
    times = timeline.load(folder / "timelines" / f"{key}.trntime")
    path = folder / "details" / f"{key}.json"
    try:
        about = _read(path, DETAILS, DETAILS_VERSION)
        schema.check_details(about)
        return step_of(times, about)
    except (IndexError, ValueError, zlib.error) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def step_of(times: Timeline, about: dict[str, Any]) -> Step:
    """A step of its timeline and its details. Raises ValueError and its like when they do not fit."""
    text, source = _expand(about)
    buffer = from_text(about["buffer"])
    if not len(text) == len(source) == len(buffer) == len(times):
        raise ValueError(f"{len(text)} instructions instead of {len(times)}")
    _check_places("text", text, len(about["texts"]))
    _check_places("source", source, len(about["sources"]))
    _check_places("buffer", buffer, len(about["buffers"]), least=-1)
    _check_places("critical_path", np.array(about["critical_path"], np.int64), len(times))
    occupancy = {
        name: Occupancy(used["capacity"], np.cumsum(from_text(used["time"])), from_text(used["bytes"]))
        for name, used in about["occupancy"].items()
    }
    spilled = about["spilled"]
    return Step(
        times,
        tuple(about["texts"]),
        tuple((place, line) for place, line in about["sources"]),
        text,
        source,
        np.array(about["critical_path"], np.int64),
        tuple(about["buffers"]),
        buffer,
        occupancy,
        (spilled["save_bytes"], spilled["reload_bytes"]),
    )


def _check_places(name: str, places: Ints, length: int, least: int = 0) -> None:
    if len(places) and not least <= int(places.min()) <= int(places.max()) < length:
        raise ValueError(f"{name} points outside of its table of {length}")


def to_text(column: Ints) -> str:
    """Integers as the details hold them: little-endian 64 bits, deflated, base64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(column, "<i8").tobytes(), 6)).decode()


def from_text(text: str) -> Ints:
    """What `to_text` wrote. Raises ValueError or zlib.error for anything else."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8")


def _expand(about: dict[str, Any]) -> tuple[Ints, Ints]:
    """Text and source of every instruction, from those of the routines."""
    routines = [(np.array(r["text"], np.int64), np.array(r["source"], np.int64)) for r in about["routines"]]
    text = [routines[routine][0] for routine, _ in about["calls"]]
    source = [routines[r][1] if own < 0 else np.full(len(routines[r][0]), own, np.int64) for r, own in about["calls"]]
    none = np.empty(0, np.int64)
    return np.concatenate([none, *text]), np.concatenate([none, *source])


def _read(path: Path, kind: str, version: int) -> dict[str, Any]:
    """A JSON file of this kind (its `schema`) and version."""
    try:
        found = json_of(path.read_bytes())
    except OSError as error:
        raise RunError(f"{str(path)!r} cannot be read", code="TRN811", got=error.strerror) from error
    except ValueError as error:
        raise _damaged(path, f"not JSON: {error}") from error
    if not isinstance(found, dict) or (found.get("schema"), found.get("version")) != (kind, version):
        raise RunError(
            f"{str(path)!r} is of another kind or version",
            code="TRN812",
            limit=f"{kind} version {version}",
            remedy="read it with the trnlab that wrote it, or run the script again",
        )
    return found


def _damaged(path: Path, reason: str) -> RunError:
    return RunError(f"{str(path)!r} is damaged: {reason}", code="TRN812", remedy="run the script again")
