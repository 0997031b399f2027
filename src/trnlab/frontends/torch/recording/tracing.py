# SPDX-License-Identifier: Apache-2.0
"""What an engine that follows a script without its values is told of recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from trnlab.frontends.common import engine
from trnlab.frontends.torch.recording.memory import Memories
from trnlab.frontends.torch.recording.passes import RecordingPart
from trnlab.frontends.torch.recording.programs import NumberedRecording, RecordedProgram
from trnlab.frontends.torch.recording.recorder import RecordedOperator


class TracingComputer(Protocol):
    """Takes recordings in the place of the chip, and of the host where that would compute them."""

    def parts(self, nodes: list[RecordedOperator]) -> list[RecordingPart]:
        """The programs that a recording is computed by."""

    def recorded(self, program: RecordedProgram, reading: NumberedRecording, memories: Memories) -> None:
        """A recording would run now as this program. memories: of what was computed before."""

    def on_host(self, nodes: Sequence[RecordedOperator], counts: bool, memories: Memories) -> None:
        """The host would compute these. counts: among the operators that were left to it."""

    def refused(self, nodes: Sequence[RecordedOperator], error: Exception) -> None:
        """The chip has no form of these."""

    def left_to_host(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The results of an operator that cannot be recorded."""

    def count(self, op: Any, mask: Tensor, numbers: Tensor, assumed: int) -> int:
        """How many places a mask chooses, for an operator. numbers: of each place how many are chosen up to it.
        assumed: how many they are where nobody knows."""

    def counted_before(self, op: Any) -> None:
        """An operator chooses by a mask whose places were counted just before."""

    def drawn(self, op: Any, like: Tensor, fill: Callable[[Tensor], Any]) -> Tensor:
        """A tensor of the device, in the form of `like`, in the place of the random numbers that `fill` writes."""


def follower() -> TracingComputer | None:
    """The engine in use where it follows recordings."""
    now: Any = engine.current()
    return now if hasattr(now, "recorded") else None
