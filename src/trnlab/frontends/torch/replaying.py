# SPDX-License-Identifier: Apache-2.0
"""Whether this process's compiled steps are kept in checkpoints; one that keeps none starts without `replay`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnlab.runtime.checkpoint_plan import CheckpointUse, plan

if TYPE_CHECKING:
    from trnlab.frontends.torch.replay import StepReplay

_made: list[StepReplay] = []


def active() -> StepReplay | None:
    """What replays this process's compiled steps, where a place for checkpoints was chosen and the script writes none
    by itself. Raises what `checkpoints.newest` raises."""
    if CheckpointUse.by == "script":
        return None
    if not _made and (wanted := plan()) is not None:
        from trnlab.frontends.torch.replay import StepReplay

        CheckpointUse.by = "steps"
        _made.append(StepReplay(wanted))
    return _made[-1] if _made else None
