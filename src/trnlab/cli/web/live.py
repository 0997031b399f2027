# SPDX-License-Identifier: Apache-2.0
"""What a run that goes on says of its programs, as `trnlab monitor` reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trnlab import chips
from trnlab.cli.web.site import ServedSite
from trnlab.documents import Section, Table
from trnlab.profile.data import Step, step_of
from trnlab.profile.names import nice_time
from trnlab.runtime import status_file
from trnlab.runtime.analysis.details import details
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.executable import Executable
from trnlab.runtime.status_file import State
from trnlab.storage import open_store
from trnlab.units import PS_PER_S, format_bytes, format_count

_KEY = re.compile("[0-9a-f]{64}")


def state_of(folder: Path) -> State | None:
    """The record of the process whose run lies in a folder; None where there is none, or nobody may look."""
    place = status_file.folder()
    if place is None:
        return None
    status_file.look(place)
    same = (state for state in status_file.states(place) if Path(state.record["folder"]) == folder)
    return next(same, None)


def live(folder: Path) -> Iterator[Section]:
    """Its programs with their times on the chip, which are simulated because somebody looks."""
    state = state_of(folder)
    if state is None:
        return
    record = state.record
    rows = [
        (
            each["name"],
            f"{each['calls']:,}",
            "" if each["latency_s"] is None else nice_time(each["latency_s"] * PS_PER_S),
            format_count(each["flops"]),
        )
        for each in record["executions"]
    ]
    used = ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in record["memory"].items())
    say = f"Process {state.pid}, rank {record['rank']}. HBM: {used}." + (f" {state.why}" if state.gone else "")
    head = ("program", "executions", "one on the chip", "operations")
    yield Section(heading="Programs now", say=say, parts=[Table(rows, head, (1, 2, 3))])


def executed(site: ServedSite, folder: Path) -> tuple[str, Step] | None:
    """The program that a run executes the longest, with its instructions; None where none is in the site's cache."""
    state = state_of(folder)
    if state is None:
        return None
    chip = chips.target(state.record["target"]).chip
    ordered = sorted(state.record["executions"], key=lambda each: -each["calls"] * (each["latency_s"] or 1.0))
    cache = Cache(open_store(site.cache), writable=False)
    for each in ordered:
        stored = cache.get(each["key"], chip) if _KEY.fullmatch(each["key"]) and cache.has(each["key"]) else None
        if stored is not None:
            made = Executable(stored.program, stored.graph, stored.metadata, chip, "hit", 0.0)
            return each["name"], step_of(made.timeline, details(made.laid, made.timeline, chip))
    return None
