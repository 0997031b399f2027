# SPDX-License-Identifier: Apache-2.0
"""What a step computes twice on purpose: parts that a checkpoint runs again, parameters that are gathered again.

Computing twice is what keeps results out of memory between the passes. A compiler that merges equal operators would
undo it, so the operators of such a part carry its number while they are traced, and read what comes from outside of
the part through a barrier of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import torch.utils.checkpoint as checkpointing
from torch import fx
from torch.fx import traceback as fx_traceback

from trnlab.frontends.torch.pytorch.tensors import RECOMPUTING

_META, _KEY = "custom", "trnlab_again"  # FX copies the dictionary of this name from node to node


def part_of(node: fx.Node) -> int | None:
    """The part that an operator belongs to; None for what is computed once."""
    return (node.meta.get(_META) or {}).get(_KEY)


@contextmanager
def computed_again(number: int) -> Iterator[None]:
    """Operators that are traced within the block belong to the part with this number."""
    meta = fx_traceback.current_meta
    before = meta.get(_META)
    meta[_META] = {**(before or {}), _KEY: number}
    try:
        yield
    finally:
        if before is None:
            meta.pop(_META, None)
        else:
            meta[_META] = before


class RecomputedParts:
    """The parts of one step, by number."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def new(self) -> int:
        """A part of its own."""
        return next(self._numbers)

    @contextmanager
    def of_checkpoints(self) -> Iterator[None]:
        """Within the block what a checkpoint runs again is a part."""
        parts = self
        pytorchs: Any = getattr(*RECOMPUTING)

        class Recomputing(pytorchs):
            def __enter__(self) -> Any:
                self.stack = ExitStack()
                self.stack.enter_context(computed_again(parts.new()))
                return super().__enter__()

            def __exit__(self, *error: Any) -> Any:
                self.stack.close()
                return super().__exit__(*error)

        backward = checkpointing.CheckpointFunction.backward

        def reentrant(ctx: Any, *gradients: Any) -> Any:
            with computed_again(parts.new()):
                return backward(ctx, *gradients)

        with (
            patch.object(*RECOMPUTING, Recomputing),
            patch.object(checkpointing.CheckpointFunction, "backward", staticmethod(reentrant)),
        ):
            yield
