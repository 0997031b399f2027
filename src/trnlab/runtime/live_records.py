# SPDX-License-Identifier: Apache-2.0
"""Live records as they are read: the folder may be one that others write to, and a file may hold anything.

`read` gives records whose every field is of the kind, and in the range, that whoever shows them takes for granted.
All else is none of ours. Text has no characters but those that can be seen.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trnlab import chips
from trnlab.errors import TrnlabError
from trnlab.files import json_of
from trnlab.quoting import one_line
from trnlab.storage import plain_files

SCHEMA, VERSION = "trnlab.live", 1
_LARGEST = 1 << 20  # bytes of a file that can be one of ours
_MOST = 1 << 62
_MOST_PLACES = 1 << 20
_LONGEST = 400  # characters of a name


class _OtherError(ValueError):
    """A field that no record of ours has."""


def user() -> int:
    """The user's number; where users have none, 0, as files there say of their owner."""
    return os.getuid() if hasattr(os, "getuid") else 0


def is_ours(place: Path) -> bool:
    """Whether a folder is one, no link, and this user's. Raises OSError where it cannot be looked at."""
    about = place.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == user()


def read(place: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The records of a folder, with their files; nothing where the folder is not ours."""
    try:
        paths = sorted(place.glob("[0-9]*.json")) if is_ours(place) else []
    except OSError:
        return
    for path in paths:
        try:
            if path.stem.isdecimal() and path.lstat().st_uid == user():
                yield path, sound(json_of(plain_files.read(path, most=_LARGEST)))
        except (OSError, ValueError):
            continue


def sound(told: Any) -> dict[str, Any]:
    """A record with the fields that it is shown by, each as it is taken for. Raises ValueError for all else."""
    if not isinstance(told, dict) or (told.get("schema"), told.get("version")) != (SCHEMA, VERSION):
        raise _OtherError("it is no record")
    found: dict[str, Any] = {name: _count(told.get(name), 1 << 31) for name in ("pid", "rank")}
    found |= {name: _count(told.get(name, 0)) for name in ("birth", "steps")}
    found |= {name: _seconds(told.get(name, 0.0)) for name in ("network_s", "input_s")}
    found |= {name: _counts(told.get(name)) for name in ("errors", "outcomes", "ecc")}
    found |= {name: _text(told.get(name, "")) for name in ("tag", "script", "status", "target", "folder")}
    found["updated"] = _seconds(told.get("updated"))
    found["started"] = _seconds(told.get("started", found["updated"]))
    found |= {"schema": SCHEMA, "version": VERSION, "pairs": bool(told.get("pairs"))}
    found["logical"] = 2 if told.get("logical") == 2 else 1
    place = told.get("place")
    if found["pid"] == 0 or not isinstance(place, Mapping):
        raise _OtherError("of no process, or nowhere")
    found["place"] = {name: _count(place.get(name), _MOST_PLACES) for name in ("instance", "chip", "core")}
    found["executions"] = [_execution(each) for each in _list(told.get("executions"))]
    found["memory"] = _counts(told.get("memory", {}))
    found["loss"] = [_number(each) for each in _list(told.get("loss") or [])[:1]] or None
    try:
        chips.target(found["target"])
    except TrnlabError as error:
        raise _OtherError(error.what) from None
    return found


def _execution(each: Any) -> dict[str, Any]:
    if not isinstance(each, Mapping):
        raise _OtherError("an execution that is none")
    latency = each.get("latency_s")
    return {
        "name": _text(each.get("name")),
        "key": _text(each.get("key")),
        "calls": _count(each.get("calls")),
        "latency_s": None if latency is None else _seconds(latency),
        "flops": _count(each.get("flops", 0)),
    }


def _count(value: Any, most: int = _MOST) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise _OtherError("a count that is none")
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < _MOST or not math.isfinite(value):
        raise _OtherError("a time that is none")
    return float(value)


def _number(value: Any) -> float:
    """Any number, those that no training should have included."""
    if type(value) not in (int, float) or (type(value) is int and abs(value) >= _MOST):
        raise _OtherError("a number that is none")
    return float(value)


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise _OtherError("counts that are none")
    return {_text(name): _count(count) for name, count in value.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _OtherError("a name that is none")
    return one_line(value)[:_LONGEST]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _OtherError("a list that is none")
    return value
