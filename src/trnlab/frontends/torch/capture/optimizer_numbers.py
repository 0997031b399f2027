# SPDX-License-Identifier: Apache-2.0
"""What an optimizer keeps as Python's numbers (step counts of its own, warm-up factors), and a step changes.

A program was captured for what they were before the step, and what they are after it is written back after each run.
Step counts are no such numbers where a tensor could stand for them (see `scalars`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch.capture.subject import exactly

_PLAIN = (int, float, str, bool, type(None))


@dataclass(frozen=True)
class OptimizerNumber:
    """What `table[place][key]` is after a step; table: "state", by position of the parameter, or "group"."""

    table: str
    place: int
    key: str
    value: Any


def store(numbers: Sequence[OptimizerNumber], optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
    """Write the numbers where the optimizer keeps them."""
    for n in numbers:
        held = optimizer.state[parameters[n.place]] if n.table == "state" else optimizer.param_groups[n.place]
        held[n.key] = n.value


class OptimizerNumbers:
    """The optimizer's numbers before a step is traced."""

    def __init__(self, optimizer: torch.optim.Optimizer, state: Sequence[Mapping[str, Any]]) -> None:
        self.optimizer, self._state = optimizer, [_exact(s) for s in state]
        self._groups = [_exact(g, {"params"}) for g in optimizer.param_groups]
        self._rates = [g.get("lr") for g in optimizer.param_groups]

    def changed(self, state: Sequence[Mapping[str, Any]]) -> Iterator[OptimizerNumber]:
        """Those that are others now. Raises UnsupportedOpError where the change can't be repeated after a run."""
        for table, before, after, left_out in (
            ("state", self._state, state, set()),
            ("group", self._groups, self.optimizer.param_groups, {"params"}),
        ):
            for place, (old, new) in enumerate(zip(before, after)):
                for key, value in _exact(new, left_out).items():
                    if old.get(key) != value:
                        yield self._number(table, place, key, new[key])
        if any(g.get("lr") is not rate for g, rate in zip(self.optimizer.param_groups, self._rates)):
            raise self.refused("lr")

    def _number(self, table: str, place: int, key: str, value: Any) -> OptimizerNumber:
        if not isinstance(value, _PLAIN):
            raise self.refused(key)
        return OptimizerNumber(table, place, key, value)

    def refused(self, key: str) -> UnsupportedOpError:
        """The refusal of something that changes."""
        return UnsupportedOpError(
            f"{type(self.optimizer).__name__} changes {key!r}, which is neither a number nor a tensor of its state",
            code="TRN202",
            remedy="keep it in a tensor of the optimizer's state, or change it before the step is called",
        )


def _exact(held: Mapping[str, Any], left_out: set[str] = frozenset()) -> dict[str, Hashable]:  # type: ignore[assignment]
    return {k: exactly(v) for k, v in held.items() if k not in left_out and not isinstance(v, Tensor)}
