# SPDX-License-Identifier: Apache-2.0
"""One exception tree with stable codes; every message says what, where, limit, value, chip and the way out.

    TrnlabError
    |- UsageError            TRN1xx   command line, unknown target, missing file, no permission
    |- UnsupportedOpError    TRN2xx   the framework's op or dtype has no lowering
    |- CollectiveError       TRN27x   ranks do not agree on what they do together, or one of them is gone
    |- GraphError            TRN3xx   a graph breaks the rules of its ops
    |- ConstraintError       TRN4xx   an instruction breaks a rule of its engine or of the chip
    |- CapacityError         TRN5xx   it does not fit in SBUF, PSUM or HBM
    |- CacheError            TRN6xx   the compile cache could not be read or written
    |- NumericsError         TRN7xx   NaN or infinity where the user asked to be told
    |- RunError              TRN8xx   a run could not be made or read
    `- LintError             TRN9xx   Python in a kernel that the vendor's compiler refuses

`docs/errors.md` explains each code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's source. `line` counts from one; `text` is the source line when known."""

    file: str
    line: int
    function: str = ""
    text: str = ""
    # path of the module of a model whose code it is, such as "model.blocks.3.proj", where there is one
    layer: str = ""
    phase: str = ""  # "forward" or "backward", where the framework says that the op is of a differentiated function

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place} in {self.function}" if self.function else place


class TrnlabError(Exception):
    """Base of every error a user can meet.

    `code` is stable across releases and names a section of `docs/errors.md`.
    """

    code = "TRN000"

    def __init__(
        self,
        what: str,
        *,
        code: str | None = None,
        where: Location | None = None,
        limit: object = None,
        got: object = None,
        chip: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.what, self.where, self.limit, self.got = what, where, limit, got
        self.chip, self.remedy = chip, remedy
        if code is not None:
            self.code = code
        super().__init__(what)

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.what}"]
        if self.where is not None:
            lines.append(f"  at     {self.where}")
            if self.where.text:
                lines.append(f"         {self.where.text.strip()}")
        for label, value in (("limit", self.limit), ("got", self.got), ("chip", self.chip), ("do", self.remedy)):
            if value is not None:
                lines.append(f"  {label:<6} {value}")
        return "\n".join(lines)


class UsageError(TrnlabError):
    """The request itself is wrong: a name, a path, an option, a permission."""

    code = "TRN100"


class UnsupportedOpError(TrnlabError):
    """An operator, dtype or form that has no lowering; carries all of a script's at once."""

    code = "TRN200"


class CollectiveError(TrnlabError, RuntimeError):
    """Ranks that do not agree on what they do together, or that wait for one who will not come. A RuntimeError, as
    what PyTorch and Horovod raise for it."""

    code = "TRN270"


class GraphError(TrnlabError):
    """A graph that breaks the typing rules of its ops."""

    code = "TRN300"


class ConstraintError(TrnlabError):
    """An instruction that its engine, or this generation of the chip, would refuse."""

    code = "TRN400"


class CapacityError(TrnlabError):
    """Something that does not fit in SBUF, PSUM or HBM."""

    code = "TRN500"


class CacheError(TrnlabError):
    """The compile cache could not be read or written."""

    code = "TRN600"


class NumericsError(TrnlabError):
    """NaN or infinity, found where the user asked to be told."""

    code = "TRN700"


class LintError(TrnlabError):
    """Python in a kernel that runs here and that the vendor's compiler refuses."""

    code = "TRN900"


class RunError(TrnlabError):
    """A run that could not be made, saved or read back."""

    code = "TRN800"


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.4) -> str:
    """Which of the `known` names is spelled most like `name`, or "" where none is as like as `cutoff` (0 to 1)."""
    close = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return close[0] if close else ""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The way out for a name that is not known: a name that is spelled like it, or what `otherwise` says."""
    close = nearest(name, known)
    return f"did you mean {close!r}?" if close else otherwise
