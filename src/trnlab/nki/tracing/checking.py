# SPDX-License-Identifier: Apache-2.0
"""The checks of `sim.checks` on a kernel that was just recorded, and what becomes of their findings at each call."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from trnlab import checks
from trnlab.chips.spec import Chip
from trnlab.lang.recorder import Recorder
from trnlab.lang.tensor import Tensor
from trnlab.nki.lint import ERROR, lint_function
from trnlab.program.routine import Routine
from trnlab.sim.checks import CheckFinding, Returned, Scene, check_routine

_OURS = str(Path(checks.__file__).parent) + os.sep
_NAMES_AND_ARGUMENTS = ("TRN910", "TRN911", "TRN912")  # warnings in the old dialect, until Python finds the same


def findings(
    recorder: Recorder, routine: Routine, arguments: int, returned: Iterable[Tensor], alone: bool
) -> tuple[CheckFinding, ...]:
    """What the checks find wrong with one core's routine.

    arguments: how many parameters come from the caller; like constants they have contents. returned: result tensors.
    alone: no other core shares the HBM; where one does, what this core did not write the other may have.
    """
    given = {*range(arguments), *recorder.arrays}
    if not alone:
        given |= {p for p, tensor in enumerate(recorder.hbm) if tensor.storage.common}
    filled = frozenset(number for position, number in enumerate(routine.params) if position in given)
    returned = [t for t in returned if t.storage.recorder is recorder and not t.is_indirect() and not t.on_chip]
    observed = frozenset(routine.params[:arguments])
    if not alone:
        observed |= {t.storage.buffer.id for t in returned}
    results = tuple(
        Returned(t.storage.buffer.id, t.shape, t.strides, t.offset, t.format.itemsize)
        for t in returned
        if alone and t.storage.buffer.id not in filled
    )
    scene = Scene(
        filled=filled,
        observed=observed,
        results=results,
        explicit=explicit(recorder),
        accumulating=tuple(recorder.accumulating),
        free=tuple(recorder.free),
        spans=recorder.spans,
        lines=recorder.lines_of_tiles,
        masks=recorder.tensor_type is not Tensor,  # tiles of the old dialect
    )
    remarks = (CheckFinding("lint", error) for error in recorder.remarks.values())
    return (*remarks, *check_routine(routine, recorder.chip, scene))


@lru_cache(maxsize=1024)
def refused(function: Callable[..., Any], chip: Chip) -> tuple[CheckFinding, ...]:
    """What the vendor's compiler would refuse in a kernel's text; its warnings are left to `trnlab lint`."""
    if function.__module__ and function.__module__.startswith("trnlab."):
        return ()
    return tuple(CheckFinding("lint", f.error()) for f in lint_function(function, chip) if f.severity == ERROR)


@contextmanager
def explained(function: Callable[..., Any], chip: Chip) -> Iterator[None]:
    """Within the block, Python's complaint about a name or an argument becomes what `lint` says about that place.

    Raises LintError from the TypeError or AttributeError, or that itself where lint has nothing to say.
    """
    try:
        yield
    except (AttributeError, TypeError) as error:
        places = [place for place in map(_place, _frames(error)) if place]
        for finding in lint_function(function, chip) if places else ():
            file, first, last = places[-1]
            tells = finding.severity == ERROR or finding.code in _NAMES_AND_ARGUMENTS
            if tells and finding.file == file and first <= finding.line <= last:
                raise finding.error() from error
        raise


def _frames(error: BaseException) -> Iterator[TracebackType]:
    frame = error.__traceback__
    while frame is not None:
        yield frame
        frame = frame.tb_next


def _place(frame: TracebackType) -> tuple[str, int, int] | None:
    """File, first and last line of what the user's frame was doing; None for a frame of ours."""
    code = frame.tb_frame.f_code
    if code.co_filename.startswith(_OURS):
        return None
    first, last, *_ = next(itertools.islice(code.co_positions(), frame.tb_lasti // 2, None))
    return code.co_filename, first or frame.tb_lineno, last or frame.tb_lineno


def explicit(recorder: Recorder) -> frozenset[int]:
    """Tiles whose address the kernel chose."""
    return frozenset(made.buffer.id for made in recorder.tiles if made.address is not None)
