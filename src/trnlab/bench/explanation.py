# SPDX-License-Identifier: Apache-2.0
"""Why a recorded kernel takes as long as it does, and what each change would bring at most."""

from __future__ import annotations

from typing import Any

from trnlab.chips.spec import Chip
from trnlab.nki.portable import PortableKernel
from trnlab.profile.data import Step, step_of
from trnlab.runtime.analysis.counters import counters
from trnlab.runtime.analysis.details import details
from trnlab.runtime.analysis.insight import insight, parts_of
from trnlab.runtime.kernels import kernel_executable
from trnlab.sim.timing.summary import critical_time, engine_use

SHOWN = 6
_HIGH = 0.9  # of an engine's time: what it does has to become less


def explained(kernel: PortableKernel, chip: Chip) -> dict[str, Any]:
    """Plain values: the time, where the longest chain of dependencies spends it, the lines that cost most of it, and
    changes with the most that each can gain, the best first. Gains do not add up."""
    executable = kernel_executable(kernel.trace.program, chip, kernel.policy(chip))
    timeline = executable.timeline
    about = details(executable.laid, timeline, chip)
    found = insight(parts_of([(executable, 1)], {executable.key: about}), chip)
    total = max(timeline.total, 1)
    chain = {name: ps for name, ps in critical_time(timeline).items() if ps}
    return {
        "time_us": timeline.total / 1e6,
        "instructions": len(timeline),
        "critical_path_percent": {name: round(100 * ps / total, 1) for name, ps in _most(chain)},
        "engine_active_percent": {u.name: round(100 * u.active / total, 1) for u in engine_use(timeline)},
        "costliest_lines": [
            {
                "line": _short(row["line"]),
                "text": row["text"],
                "percent_of_time": round(100 * row["critical_ps"] / total, 1),
            }
            for row in found["costliest_lines"][:SHOWN]
            if row["critical_ps"]
        ],
        "changes": [
            {
                "about": _short(row["line"]) or row["what"],
                "do": row["way"] or row["what"],
                "gain_percent_at_most": round(100 * row["gain"], 1),
            }
            for row in found["advice"][:SHOWN]
        ],
        "spilled_bytes": found["spill"]["save_bytes"] + found["spill"]["reload_bytes"],
        "counters": counters(kernel.trace.program, timeline, chip),
        "next": _next(found, timeline),
    }


def recorded_step(kernel: PortableKernel, chip: Chip) -> Step:
    """The instructions of a recorded kernel with their times and lines."""
    executable = kernel_executable(kernel.trace.program, chip, kernel.policy(chip))
    return step_of(executable.timeline, details(executable.laid, executable.timeline, chip))


def _short(place: str) -> str:
    """A line without the folder of its file."""
    return place.rpartition("/")[2]


def _most(chain: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(chain.items(), key=lambda item: -item[1])


def _next(found: dict[str, Any], timeline: Any) -> str:
    """One sentence: what to try first."""
    if found["spill"]["save_bytes"]:
        return "tiles are spilled to HBM: make them smaller, or let them live shorter, before anything else"
    busiest = max(engine_use(timeline), key=lambda use: use.active, default=None)
    if busiest is not None and timeline.total and busiest.active / timeline.total > _HIGH:
        return f"{busiest.name} is active nearly all the time: give it less to do, or give some to another engine"
    general = [row for row in found["advice"] if not row["line"]]
    return f"{general[0]['way']} ({general[0]['gain']:.0%} at most)" if general else "nothing stands out"
