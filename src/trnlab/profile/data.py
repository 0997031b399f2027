# SPDX-License-Identifier: Apache-2.0
"""A run's folder, read back: its summary, and the instructions of one step with their times.

The files are described in `docs/summary.md`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trnlab import timeline
from trnlab.errors import RunError
from trnlab.timeline import Timeline

SCHEMA, VERSION, FILE = "trnlab.summary", 1, "summary.json"
DETAILS, DETAILS_VERSION = "trnlab.details", 1

Ints = np.ndarray[Any, np.dtype[Any]]
Source = tuple[str, str]  # "file:line in function", and the text of that line


@dataclass(frozen=True)
class Step:
    """One training step. `text` and `source` have one row per instruction, indices into `texts` and `sources`.

    critical: the instructions of the longest chain of dependencies, first to last.
    """

    timeline: Timeline
    texts: tuple[str, ...]
    sources: tuple[Source, ...]
    text: Ints
    source: Ints
    critical: Ints


@dataclass(frozen=True)
class Profile:
    """A run. `step` is None when it ended before anything could be timed."""

    folder: Path
    summary: dict[str, Any]
    step: Step | None


def load(folder: Path) -> Profile:
    """Read the folder of a run. Raises RunError when there is none, or something in it is damaged."""
    summary = read_summary(folder)
    parts = [(folder, entry["executable"], entry["times"]) for entry in summary.get("step", ())]
    steps = [part for place, key, times in parts for part in [_load_step(place, key)] * times]
    return Profile(folder, summary, join(steps) if steps else None)


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a run's folder. Raises RunError when there is none, or it is not one."""
    path = folder / FILE
    if not folder.is_dir():
        raise RunError(f"there is no folder {str(folder)!r}", code="TRN810", remedy="name the folder of a run")
    if not path.exists():
        raise RunError(
            f"{str(folder)!r} holds no {FILE}", code="TRN810",
            remedy="name the folder of a run, as `trnlab run` printed it",
        )  # fmt: skip
    return _read(path, SCHEMA, VERSION)


def join(steps: Sequence[Step]) -> Step:
    """Steps one after the other as one."""
    if len(steps) == 1:
        return steps[0]
    instructions = _offsets([len(s.timeline) for s in steps])
    texts, sources = _offsets([len(s.texts) for s in steps]), _offsets([len(s.sources) for s in steps])
    return Step(
        timeline=_join_timelines([s.timeline for s in steps]),
        texts=tuple(text for s in steps for text in s.texts),
        sources=tuple(source for s in steps for source in s.sources),
        text=np.concatenate([s.text + first for s, first in zip(steps, texts)]),
        source=np.concatenate([s.source + first for s, first in zip(steps, sources)]),
        critical=np.concatenate([s.critical + first for s, first in zip(steps, instructions)]),
    )


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
    about = _read(path, DETAILS, DETAILS_VERSION)
    try:
        text, source = _expand(about)
        step = Step(
            times, tuple(about["texts"]), tuple((place, line) for place, line in about["sources"]), text, source,
            np.array(about["critical_path"], np.int64),
        )  # fmt: skip
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    if not len(text) == len(source) == len(times):
        raise _damaged(path, f"{len(text)} instructions instead of {len(times)}")
    return step


def _expand(about: dict[str, Any]) -> tuple[Ints, Ints]:
    """Text and source of every instruction, from those of the routines."""
    routines = [(np.array(r["text"], np.int64), np.array(r["source"], np.int64)) for r in about["routines"]]
    text = [routines[routine][0] for routine, _ in about["calls"]]
    source = [routines[r][1] if own < 0 else np.full(len(routines[r][0]), own, np.int64) for r, own in about["calls"]]
    none = np.empty(0, np.int64)
    return np.concatenate([none, *text]), np.concatenate([none, *source])


def _read(path: Path, schema: str, version: int) -> dict[str, Any]:
    """A JSON file of this schema and version."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise RunError(f"{str(path)!r} cannot be read", code="TRN811", got=error.strerror) from error
    except ValueError as error:
        raise _damaged(path, f"not JSON: {error}") from error
    if not isinstance(found, dict) or (found.get("schema"), found.get("version")) != (schema, version):
        raise RunError(
            f"{str(path)!r} is of another kind or version", code="TRN812", limit=f"{schema} version {version}",
            remedy="read it with the trnlab that wrote it, or run the script again",
        )  # fmt: skip
    return found


def _damaged(path: Path, reason: str) -> RunError:
    return RunError(f"{str(path)!r} is damaged: {reason}", code="TRN812", remedy="run the script again")
