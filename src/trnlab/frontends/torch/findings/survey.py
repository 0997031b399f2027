# SPDX-License-Identifier: Apache-2.0
"""What stands in the way of a step, gathered instead of raised: while a survey is active, capturing goes on.

with surveyed(Survey()) as survey:
    capture_step(...)
survey.findings
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from trnlab.errors import Location, TrnlabError
from trnlab.findings import ERROR, WARNING, Finding, UserLine
from trnlab.frontends.torch.findings.refusals import UnsupportedOp
from trnlab.graph.ir import Graph


class Survey:
    """Findings in the order in which they were met; one for each cause, however often it is met."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Finding] = {}
        self.operators: WeakKeyDictionary[Graph, Counter[str]] = WeakKeyDictionary()
        self.refused: Counter[str] = Counter()
        self.raises = False

    @property
    def findings(self) -> list[Finding]:
        """What was found."""
        return list(self._found.values())

    def note(
        self,
        code: str,
        what: str,
        where: Location | None,
        *,
        why: str = "",
        do: str = "",
        subject: str = "",
        severity: str = ERROR,
        whatever: bool = False,
    ) -> Finding:
        """Add a finding, or another place of one that is known: those of one subject for one reason are one, with
        `whatever` those of one subject."""
        place = UserLine.of(where)
        key = (code, subject or what, "" if whatever else why if subject else str(place))
        known = self._found.get(key)
        if known is None:
            known = self._found[key] = Finding(code, severity, what, place, why, do, subject)
        elif place != known.place and place not in known.places:
            known.places.append(place)
        return known

    def knows(self, code: str, subject: str) -> bool:
        """Whether there is such a finding."""
        return any(key[:2] == (code, subject) for key in self._found)

    def drop(self, code: str, subject: str) -> None:
        """Take a finding back, which another says better."""
        for key in [key for key in self._found if key[:2] == (code, subject)]:
            del self._found[key]

    def raised(self, error: TrnlabError) -> Finding:
        """An error that ended the walk."""
        limits = [f"{label} {value}" for label, value in (("limit", error.limit), ("got", error.got)) if value]
        return self.note(error.code, error.what, error.where, why="; ".join(limits), do=str(error.remedy or ""))

    def add(self, other: Survey) -> None:
        """What another walk of the same script met, as on another rank."""
        for key, finding in other._found.items():
            self._found.setdefault(key, finding)

    def uses(self, uses: Sequence[UnsupportedOp], of_gradients: Collection[int]) -> None:
        """Operators that the importer refuses; of_gradients: those (by place) that are of the way back, which say
        nothing new where the line has a finding already."""
        self.refused |= Counter(use.name for use in uses)
        for i, use in enumerate(uses):
            if i not in of_gradients or not self._knows(use.where):
                self.note(
                    use.code,
                    f"{use.name}({', '.join(use.operands)}) cannot run on the chip",
                    use.where,
                    why=use.reason,
                    do=use.do,
                    subject=use.name,
                )

    def _knows(self, where: Location | None) -> bool:
        line = (where.file, where.line) if where is not None else None
        places = [p for f in self.findings if f.severity == ERROR for p in (f.place, *f.places)]
        return any((p.file, p.line) == line for p in places)

    def asked(self, wanted: str, phase: str, where: Location | None) -> None:
        """Python asked for the values of a tensor in the middle of a step."""
        what, why, do = _ASKED.get(wanted, _ASKED["item"])
        self.note("TRN204", what.format(phase), where, why=why, do=do, subject=f"{wanted} {where}")

    def shown(self, where: Location | None) -> None:
        """The step prints a tensor."""
        self.note(
            "TRN255",
            "a tensor is printed in the middle of the step",
            where,
            severity=WARNING,
            why="it has no values while the step is captured, and the program prints nothing",
            do="return it from the loss function beside the loss, and print it after the step",
        )


_BAKED = "the number would be a part of the program, which is captured without values; the walk went on with "
_ASKED = {
    "__bool__": (
        "{} decides by the values of a tensor what to do next",
        "a program of the chip has no branches; the walk went on as if the condition was true",
        "choose with torch.where, or decide outside of the step",
    ),
    "item": (
        "{} makes a Python number of a tensor",
        f"{_BAKED}one",
        "keep it a tensor (x.detach()), and call .item() on what the step returns",
    ),
    "numpy": (
        "{} hands the values of a tensor to NumPy or a list",
        f"{_BAKED}ones",
        "write it with PyTorch's operators, or do it before the step",
    ),
    "__index__": ("{} takes the value of a tensor as an index of Python", f"{_BAKED}zero", "index with the tensor"),
}
for _name in ("tolist", "__array__"):
    _ASKED[_name] = _ASKED["numpy"]


@contextmanager
def raising() -> Iterator[None]:
    """Within the block the importer raises what it refuses, as ever: whoever asked for the graph has another way."""
    found = active()
    was = found.raises if found is not None else False
    if found is not None:
        found.raises = True
    try:
        yield
    finally:
        if found is not None:
            found.raises = was


_active: list[Survey] = []


def active() -> Survey | None:
    """The survey that is being made, if one is."""
    return _active[-1] if _active else None


@contextmanager
def surveyed(survey: Survey) -> Iterator[Survey]:
    """Gather in `survey` within the block."""
    _active.append(survey)
    try:
        yield survey
    finally:
        _active.remove(survey)


def standing_for(wanted: str, tensor: Any) -> Any:
    """What Python gets that asks for values nobody has: ones in the tensor's shape; as an index, zero."""
    if wanted == "__index__":
        return 0
    if wanted == "__bool__":
        return True
    shape, kind = tuple(tensor.shape), tensor.dtype
    number: Any = True if str(kind) == "torch.bool" else 1.0 if kind.is_floating_point else 1
    if wanted in ("numpy", "__array__", "tolist"):
        filled = np.full(shape, number, np.float32 if isinstance(number, float) else type(number))
        return filled.tolist() if wanted == "tolist" else filled
    return {"__int__": int, "__float__": float}.get(wanted, lambda x: x)(number)


def of_graph(graph: Graph, names: Iterator[str]) -> None:
    """Remember which operators a graph was imported from, if a survey is active."""
    found = active()
    if found is not None:
        found.operators[graph] = Counter(names)
