# SPDX-License-Identifier: Apache-2.0
"""Where and how often a run writes checkpoints, as `trnlab run --checkpoint` or the environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from trnlab.errors import UsageError
from trnlab.runtime.settings import CHECKPOINT, EVERY, KEEP

USUAL_EVERY, USUAL_KEEP = 200, 3


@dataclass(frozen=True)
class CheckpointPlan:
    """Where and how often checkpoints are written."""

    place: str  # a folder or URL
    every: int = USUAL_EVERY  # steps between two checkpoints
    keep: int = USUAL_KEEP  # how many stay

    def __post_init__(self) -> None:
        for value, what in ((self.every, "steps between checkpoints"), (self.keep, "checkpoints that are kept")):
            if value < 1:
                raise UsageError(
                    f"the number of {what} is at least 1",
                    code="TRN534",
                    got=value,
                    limit="1 and more",
                    remedy="such as --every 200 --keep 3",
                )


def plan(environment: Mapping[str, str] = os.environ) -> CheckpointPlan | None:
    """What the environment says, or None. Raises UsageError (TRN534) for numbers that cannot be."""
    place = environment.get(CHECKPOINT)
    if not place:
        return None
    return CheckpointPlan(place, _number(environment, EVERY, USUAL_EVERY), _number(environment, KEEP, USUAL_KEEP))


def _number(environment: Mapping[str, str], name: str, usual: int) -> int:
    told = environment.get(name) or str(usual)
    if not told.lstrip("-").isdecimal():
        raise UsageError(f"{name} is no number", code="TRN534", got=told, limit="1 and more", remedy="such as 200")
    return int(told)


class CheckpointUse:
    """Who writes this process's checkpoints: the script itself, its compiled steps, or nobody so far; and how many
    bytes the latest one has of this rank."""

    by: str | None = None
    latest_bytes = 0
