# SPDX-License-Identifier: Apache-2.0
"""The checks of `sim.checks` on a kernel that was just recorded, and what becomes of their findings at each call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from trnlab import checks
from trnlab.chips.spec import Chip
from trnlab.lang.recorder import Recorder
from trnlab.lang.tensor import Region, Tensor
from trnlab.nki.lint import ERROR, lint_function
from trnlab.program.routine import Routine
from trnlab.sim.checks import Finding, Returned, Scene, check_routine


def findings(
    recorder: Recorder, routine: Routine, arguments: int, returned: Iterable[Tensor], alone: bool
) -> tuple[Finding, ...]:
    """What the checks find wrong with one core's routine.

    arguments: how many parameters come from the caller; like constants they have contents. returned: result tensors.
    alone: no other core shares the HBM; where one does, what this core did not write the other may have.
    """
    given = {*range(arguments), *recorder.arrays}
    if not alone:
        given |= {p for p, tensor in enumerate(recorder.hbm) if tensor.storage.region is Region.shared_hbm}
    filled = frozenset(number for position, number in enumerate(routine.params) if position in given)
    results = tuple(
        Returned(t.storage.whole.buffer.id, t.shape, t.strides, t.offset, t.format.itemsize)
        for t in returned
        if alone
        and t.storage.recorder is recorder
        and t.storage.whole.buffer.id not in filled
        and not t.is_indirect()
    )
    scene = Scene(
        filled=filled, results=results, explicit=explicit(recorder), told=tuple(recorder.told),
        free=tuple(recorder.free), spans=recorder.spans,
    )  # fmt: skip
    return check_routine(routine, recorder.chip, scene)


@lru_cache(maxsize=1024)
def refused(function: Callable[..., Any], chip: Chip) -> tuple[Finding, ...]:
    """What the vendor's compiler would refuse in a kernel's text; its warnings are left to `trnlab lint`."""
    if function.__module__ and function.__module__.startswith("trnlab."):
        return ()
    return tuple(Finding("lint", f.error()) for f in lint_function(function, chip) if f.severity == ERROR)


def explicit(recorder: Recorder) -> frozenset[int]:
    """Tiles whose address the kernel chose."""
    return frozenset(
        storage.whole.buffer.id for storage, address in recorder.fixed_tiles() if address is not None
    )  # fmt: skip


def tell(found: Iterable[Finding]) -> None:
    """Raise, warn of or pass over each finding, as the levels of the checks say now."""
    for finding in found:
        checks.report(finding.check, finding.error)
