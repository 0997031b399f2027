# SPDX-License-Identifier: Apache-2.0
"""Files of a run that were damaged: each is read as it stands or refused with a code, never with a traceback."""

from __future__ import annotations

import copy
import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from trnlab import documents, profile, timeline
from trnlab.errors import RunError

HOSTILE = (None, True, -1, 0, 1, 2**63, 10**400, 1.5, -1e308, float("nan"), "", "x", [], [None], {}, {"a": 1}, [[1]])


def paths(value: Any, found: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a structure; of long lists the first few."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    return [found, *(p for key, item in items for p in paths(item, (*found, key)))]


def damaged(value: Any, rng: random.Random) -> Any:
    """A copy with one to three places removed or replaced by something hostile."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        place = rng.choice([p for p in paths(value) if p])
        owner = value
        for key in place[:-1]:
            owner = owner[key]
        if rng.random() < 0.3:
            del owner[place[-1]]
        else:
            owner[place[-1]] = copy.deepcopy(rng.choice(HOSTILE))
    return value


def outcome(folder: Path, other: Path) -> str:
    """What a user does with a run: look at it, render it, compare it."""
    try:
        profile.show(folder)
        profile.render(folder)
        documents.text(
            profile.comparison.document(profile.compare(profile.open_run(folder), profile.open_run(other)))
        )
    except RunError as error:
        return error.code
    return "read"


@pytest.fixture
def twin(run_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folder, tmp_path / "twin"))


@pytest.mark.parametrize("where", ["summary.json", "details"])
def test_json_files(run_folder: Path, twin: Path, where: str) -> None:
    path = twin / where if where.endswith(".json") else sorted((twin / where).iterdir())[0]
    whole, rng = json.loads(path.read_text()), random.Random(1)
    found = []
    for _ in range(150):
        path.write_text(json.dumps(damaged(whole, rng)))
        found.append(outcome(twin, run_folder))
    assert {"read", "TRN812"} <= set(found) <= {"read", "TRN812", "TRN811"}  # 811: it names a file that is not there
    assert found.count("TRN812") > 100


def with_header(data: bytes, change: Any) -> bytes:
    (length,) = struct.unpack_from("<Q", data, 8)
    text = json.dumps(change(json.loads(data[16 : 16 + length]))).encode()
    return data[:8] + struct.pack("<Q", len(text)) + text + data[16 + length :]


def test_headers_of_timelines(run_folder: Path, twin: Path) -> None:
    path = sorted((twin / "timelines").iterdir())[0]
    whole, rng = path.read_bytes(), random.Random(2)
    found = []
    for _ in range(150):
        path.write_bytes(with_header(whole, lambda header: damaged(header, rng)))
        found.append(outcome(twin, run_folder))
    assert set(found) <= {"read", "TRN812"}
    assert found.count("TRN812") > 100


def test_columns_of_timelines(run_folder: Path) -> None:
    """Values that point outside of the timeline, with checksums that fit."""
    sound = timeline.load(sorted((run_folder / "timelines").iterdir())[0])
    rng = random.Random(3)
    for name, column in sound.columns().items():
        bad = column.copy()
        bad[rng.randrange(len(bad))] = 100 if column.dtype.itemsize == 1 else -(2**31)
        damaged_one = copy.copy(sound)
        setattr(damaged_one, name, bad)
        with pytest.raises(ValueError, match=f"column {name} holds values outside"):
            timeline.from_bytes(damaged_one.to_bytes())
