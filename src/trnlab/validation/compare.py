# SPDX-License-Identifier: Apache-2.0
"""Predictions against measurements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trnlab import chips
from trnlab.chips import Chip
from trnlab.program.routine import Routine
from trnlab.sim.timing import time_routine
from trnlab.units import PS_PER_NS
from trnlab.validation.anchors import Anchor, Measurement, load
from trnlab.validation.kernels import KERNELS
from trnlab.validation.quantities import predict


@dataclass(frozen=True, slots=True)
class Result:
    """One anchor and its prediction, in the anchor's unit of account (picoseconds, or a share of the total)."""

    measurement: Measurement
    anchor: Anchor
    predicted: float

    @property
    def error(self) -> float:
        """Relative to what was measured; positive when the prediction is too long."""
        return self.predicted / self.anchor.value - 1


def validate(measurements: Iterable[Measurement] | None = None) -> list[Result]:
    """Time every measured kernel on its chip and compare all that was measured of it."""
    return [result for m in (load() if measurements is None else measurements) for result in _compare(m)]


def build(measurement: Measurement, chip: Chip) -> Routine:
    """The measured kernel, recorded for `chip`."""
    return KERNELS[measurement.kernel](chip, **measurement.sizes)


def _compare(m: Measurement) -> list[Result]:
    chip = chips.get(m.chip)
    if m.alone:
        chip = chips.with_cores_at_work(chip, 1)
    routine = build(m, chip)
    phase = None if m.window_phase is None else round(m.window_phase * PS_PER_NS)
    timeline = time_routine(routine, chip, profiled=m.profiled, window_phase=phase)
    full_rate = timeline if phase is None else time_routine(routine, chip, profiled=m.profiled)
    results = []
    for anchor in m.anchors:
        single = anchor.quantity.startswith("duration")  # measured where the PE array ran at full rate
        value = predict(anchor.quantity, full_rate if single else timeline)
        if anchor.unit == "%":
            value /= timeline.total
        results.append(Result(m, anchor, value))
    return results
