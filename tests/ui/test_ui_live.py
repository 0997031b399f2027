# SPDX-License-Identifier: Apache-2.0
"""A run that goes on: its programs and the timeline of what it executes, as its record and the cache have them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages_served import Served, serving_site
from profile_samples import product, round_summary

from trnlab import chips
from trnlab.cli.web.live import state_of
from trnlab.runtime import device, status_file
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.session import Session


def record(folder: Path, key: str) -> dict[str, Any]:
    """What a process says of its run."""
    return {
        "schema": "trnlab.live",
        "version": 1,
        "pid": os.getpid(),
        "birth": status_file.birth(os.getpid()),
        "rank": 0,
        "updated": time.time(),
        "status": "running",
        "errors": {},
        "outcomes": {},
        "ecc": {},
        "folder": str(folder),
        "target": "trn1.2xlarge",
        "place": {"instance": 0, "chip": 0, "core": 0},
        "executions": [{"name": "product", "key": key, "calls": 7, "latency_s": 1e-4, "flops": 1 << 25}],
        "memory": {"tensors": 1 << 20},
    }


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("TRNLAB_LIVE", str(tmp_path / "live"))
    session = Session(chips.target("trn1.2xlarge"), cache=Cache(tmp_path / "cache"))
    key = device.compile_graph(product(), session).key
    folder = tmp_path / "site" / "runs" / "train-1"
    folder.mkdir(parents=True)
    whole = round_summary(status="running", complete=False)
    made = dict(list(whole.items())[: list(whole).index("step")])  # what is known before anything is timed
    (folder / "summary.json").write_text(json.dumps(made))
    (tmp_path / "live").mkdir(mode=0o700)
    (tmp_path / "live" / f"{os.getpid()}.json").write_text(json.dumps(record(folder.resolve(), key)))
    with serving_site(tmp_path / "site", tmp_path / "cache") as found:
        yield found


def test_its_programs_and_timeline_are_shown_while_it_goes_on(served: Served) -> None:
    said = served.values("/run/part", run="runs/train-1")["html"]
    assert "Programs now" in said
    assert "100 µs" in said
    page = served.page("/timeline", run="runs/train-1")
    assert "product, as it is executed now" in page
    assert "train.py" in page


def test_without_its_programs_the_view_says_so(served: Served, tmp_path: Path) -> None:
    for entry in (tmp_path / "cache" / "v1").glob("*.trnx"):
        entry.unlink()
    assert "Nothing of this run can be timed yet" in served.page("/timeline", run="runs/train-1")
    assert state_of(tmp_path) is None
