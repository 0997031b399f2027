# SPDX-License-Identifier: Apache-2.0
"""What became of one result of one sample: passed, refused with a code and a reason, or failed."""

from __future__ import annotations

import re
import traceback
from dataclasses import asdict, dataclass
from typing import Any

from trnlab.errors import CapacityError, NumericsError, TrnlabError, UnsupportedOpError, UsageError

PASSED, REFUSED, FAILED = "passed", "refused", "failed"
_REFUSALS = (UnsupportedOpError, UsageError, CapacityError, NumericsError)  # others: rules of the chip, of a graph
_DEFECT = "TRN219"  # said with operator and line, but a crash from inside all the same


@dataclass(frozen=True)
class Verdict:
    """`kind` is "passed", "refused" or "failed"; `code` the error's code, or "value", "crash", "timeout".

    ulp: of what passed, the largest distance from the CPU's result in units in the last place.
    """

    kind: str
    code: str = ""
    reason: str = ""
    ulp: int = 0


@dataclass(frozen=True)
class Record:
    """A verdict and what it is of. part: "forward" or "backward"; mode: "compiled", "interpreter" or "eager"."""

    op: str
    dtype: str
    sample: int
    what: str
    part: str
    mode: str
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """The inverse of `to_json`."""
        return cls(**{**data, "verdict": Verdict(**data["verdict"])})


class OutOfTime(Exception):  # noqa: N818
    """The time limit of one operator and dtype is over."""


def of_error(error: BaseException) -> Verdict:
    """Refused when one of the product's own refusals is behind the error; else failed."""
    if isinstance(error, OutOfTime):
        return Verdict(FAILED, "timeout", "took longer than the time limit")
    ours = _ours(error)
    if isinstance(ours, _REFUSALS) and ours.code != _DEFECT:
        return Verdict(REFUSED, ours.code, _brief(ours))
    if ours is not None:
        return Verdict(FAILED, ours.code, _brief(ours))
    return Verdict(FAILED, "crash", _raised_at(error))


def _ours(error: BaseException | None) -> TrnlabError | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, TrnlabError):
            return error
        seen.add(id(error))
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return None


def _brief(error: TrnlabError) -> str:
    """The message without places and numbers of operands, so that equal reasons are equal texts."""
    ops = getattr(error, "ops", None)
    if ops:
        return "; ".join(dict.fromkeys(f"{op.name}: {getattr(op, 'reason', None) or op.remedy}" for op in ops))
    text = error.what if error.got is None else f"{error.what} (limit {error.limit}, got {error.got})"
    return re.sub(r", at [^;]*", "", " ".join(text.split()))[:400]


def _raised_at(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if "trnlab" in f.filename] or frames
    place = f"{inside[-1].filename.rsplit('/src/', 1)[-1]}:{inside[-1].lineno}" if inside else "?"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} [{place}]"
