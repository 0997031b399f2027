# SPDX-License-Identifier: Apache-2.0
"""Candidates recorded in a process in a view with limits: it writes nothing that stays, reaches no network, starts no
process, and is ended with all that it has when it uses too much."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import Any

from trnlab.bench.recording import CandidateRecording, RecordingJob, record_all
from trnlab.errors import TrnlabError, UsageError
from trnlab.view.followed import ScriptExitedError, follow
from trnlab.view.request import ResourceLimits, ViewRequest

READY = "trnlab.bench.contained:imported"
WORK = f"{record_all.__module__}:{record_all.__name__}"
LIMITS = ResourceLimits()
_ROOM = 64 << 20  # bytes of files that a candidate may write, all of which are thrown away


def recordings(jobs: Sequence[RecordingJob], limits: ResourceLimits = LIMITS) -> list[CandidateRecording]:
    """Record jobs in one contained process, in order. Where that ends before it has told of all of them, each is
    recorded in a process of its own, so that one that fails takes no other with it."""
    if not jobs:
        return []
    try:
        return _contained(jobs, limits)
    except TrnlabError as error:
        if len(jobs) == 1:
            return [CandidateRecording(error=error)]
    return [recordings([job], limits)[0] for job in jobs]


def _contained(jobs: Sequence[RecordingJob], limits: ResourceLimits) -> list[CandidateRecording]:
    """Raises UsageError for a process that ended without a result (TRN583), for its limits (TRN589), and for a result
    that nobody of us made."""
    found = called(WORK, (list(jobs),), limits)
    if (
        not isinstance(found, list)
        or len(found) != len(jobs)
        or not all(isinstance(r, CandidateRecording) for r in found)
    ):
        raise UsageError("what a candidate's process says is no recording", code="TRN583", got=type(found).__name__)
    return found


def called(work: str, given: tuple[Any, ...], limits: ResourceLimits = LIMITS) -> Any:
    """What the function `work`, "module:name", returns in a contained process of its own."""
    request = ViewRequest(work, given, ready=READY, room=_ROOM, limits=limits)
    try:
        with redirect_stderr(io.StringIO()):
            return follow(request, _nothing)[0]
    except ScriptExitedError as ended:
        raise ended.error() from None
    except RuntimeError as error:  # what it raised, as text
        raise UsageError("a candidate could not be recorded", code="TRN842", got=str(error)[-2000:]) from None


def _nothing(*question: Any) -> Any:
    """A candidate asks this process for nothing."""
    raise UsageError("a candidate asked for what it does not get", code="TRN583", got=str(question[:1]))


def imported() -> None:
    """Have all that recording needs in the process that candidates' are copied from."""
    import trnlab.lang.recorder
    import trnlab.nki.language
    import trnlab.nki.neuronxcc
    import trnlab.nki.portable  # noqa: F401
