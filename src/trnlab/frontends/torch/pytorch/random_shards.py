# SPDX-License-Identifier: Apache-2.0
"""How DTensor runs random operators: in a region of its tracker, or, from 2.15 on, by one operator for accelerators.

That operator is given offsets for a Philox generator, and has kernels for CUDA and XPU alone. For the device a region
is opened instead, as before.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from trnlab.frontends.torch.pytorch import releases

_DISPATCH = "torch.distributed.tensor._dispatch"


class _Region(NamedTuple):
    """Stands for the offsets."""

    tracker: Any
    spec: Any


def within_regions(tracker: Any) -> None:
    """Let DTensors of the device draw within regions of `tracker`, a class, in each release."""
    if releases.found() < (2, 15):
        return
    others = tracker._compute_rng_offsets

    def offsets(self: Any, spec: Any) -> Any:
        if self._device.type != "neuron":
            return others(self, spec)
        _replace_operator()
        return _Region(self, spec), None

    tracker._compute_rng_offsets = offsets


def _replace_operator() -> None:
    """Once: what DTensor calls next with what `offsets` has returned."""
    dispatch: Any = sys.modules[_DISPATCH]
    others = dispatch.run_dtensor_rng_op
    if hasattr(others, "knows_regions"):
        return

    def run(start: Any, end: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(start, _Region):
            return others(start, end, op, *args, **kwargs)
        with start.tracker._distribute_region(start.spec):
            return op(*args, **kwargs)

    run.knows_regions = True  # type: ignore[attr-defined]
    dispatch.run_dtensor_rng_op = run
