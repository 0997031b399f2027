# SPDX-License-Identifier: Apache-2.0
"""What `torch.compile` gives up on: graph breaks, and functions that it compiles again, each with its reason.

PyTorch tells these to its log and to nobody else; here the two functions that it logs them in are listened to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from trnlab.errors import Location
from trnlab.findings import WARNING
from trnlab.frontends.torch.findings.locations import is_users
from trnlab.frontends.torch.findings.survey import Survey, active
from trnlab.frontends.torch.pytorch.tracing import GRAPH_BREAK, REASONS_AGAIN, TracingContext

_OWN = (
    f"torch{os.sep}optim{os.sep}optimizer.py"  # PyTorch's optimizers break the graph by themselves, before the update
)
_DO = {
    "item": "keep .item() out of the compiled function: return the tensor and read it after the step",
    "data-dependent": "write the choice with torch.where, or make it outside of the compiled function",
    "dynamic": "keep the shape: choose with torch.where or a multiplication by the mask",
    "print": "print after the step, or what does not depend on tensors",
}


@contextmanager
def listening() -> Iterator[None]:
    """Within the block what Dynamo gives up on is noted in the survey that is being made."""
    with (
        patch.object(*GRAPH_BREAK, _breaking(getattr(*GRAPH_BREAK))),
        patch.object(*REASONS_AGAIN, _recompiling(getattr(*REASONS_AGAIN))),
    ):
        yield


def _breaking(original: Callable[..., Any]) -> Callable[..., Any]:
    def noting(self: Any, code_options: Any, reason: str, exc: Any, *args: Any, **kwargs: Any) -> Any:
        survey = active()
        if survey is not None and not exc.logged:
            _note_break(survey, exc, reason)
        return original(self, code_options, reason, exc, *args, **kwargs)

    return noting


def _note_break(survey: Survey, exc: Any, reason: str) -> None:
    stack = getattr(exc, "real_stack", None) or TracingContext.extract_stack()
    if stack and stack[-1].filename.endswith(_OWN):
        return
    where = next((f for f in reversed(stack) if is_users(f.filename)), None)
    place = Location(where.filename, where.lineno or 0, where.name, where.line or "") if where is not None else None
    said = [line.strip() for line in str(exc).splitlines() if line.strip()]
    why = re.sub(r"\s+", " ", said[0] if said else reason)
    about = (str(exc) + (place.text if place else "")).lower()
    values = any(word in about for word in ("item", "data-dependent", "data dependent", "dynamic shape"))
    do = next((way for word, way in _DO.items() if word in about), "keep it out of the compiled function")
    what = "the compiled function needs the values of a tensor here" if values else "torch.compile cannot follow this"
    survey.note(
        "TRN251",
        f"{what}: it compiles what is before and after as graphs of their own, and this runs on the host",
        place,
        why=why,
        do=do,
        severity=WARNING,
    )


def _recompiling(original: Callable[..., Any]) -> Callable[..., Any]:
    def noting(entries: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        reasons = original(entries, frame, *args, **kwargs)
        survey = active()
        if survey is not None:
            _note_again(survey, frame.f_code, str(reasons[0]) if reasons else "")
        return reasons

    return noting


def _note_again(survey: Survey, code: Any, reason: str) -> None:
    text = re.sub(r"^\d+/\d+:\s*", "", reason.strip().splitlines()[0] if reason.strip() else "")
    shapes = "size mismatch" in text or "shape" in text or "stride" in text
    survey.note(
        "TRN252" if shapes else "TRN253",
        f"{code.co_name} is compiled again: "
        + ("its arguments come in another shape" if shapes else "something that it read has changed"),
        Location(code.co_filename, code.co_firstlineno, code.co_name),
        why=text,
        do="give batches one shape: pad them to a few fixed lengths, and drop_last=True"
        if shapes
        else "keep a number that changes in a tensor, or outside of the compiled function",
        subject=f"{code.co_filename}:{code.co_firstlineno}",
        severity=WARNING,
        whatever=True,
    )
