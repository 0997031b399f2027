# SPDX-License-Identifier: Apache-2.0
"""Whether this process's compiled steps are kept in checkpoints; one that keeps none starts without `replay`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trnlab.runtime.checkpoint_plan import Use, plan

if TYPE_CHECKING:
    from trnlab.frontends.torch.replay import Replay

_made: list[Replay] = []


def active() -> Replay | None:
    """What replays this process's compiled steps, where a place for checkpoints was chosen and the script writes none
    by itself. Raises what `checkpoints.newest` raises."""
    if Use.by == "script":
        return None
    if not _made and (wanted := plan()) is not None:
        from trnlab.frontends.torch.replay import Replay

        Use.by = "steps"
        _made.append(Replay(wanted))
    return _made[-1] if _made else None
