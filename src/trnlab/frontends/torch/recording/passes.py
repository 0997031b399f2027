# SPDX-License-Identifier: Apache-2.0
"""A recording of a script that only computes forward, divided into passes of its models.

What the script gives up without reading it is executed all the same, as PyTorch executes it operator by operator, and
such passes wait in one recording. What makes the models' parameters, as a cast does, is done once and is of no pass.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trnlab.frontends.torch.recording.recorder import RecordedOperator, Slot

_PERIODS = 16  # lengths of a pass that are looked into


@dataclass(frozen=True)
class RecordingPart:
    """Operators that are one program. kept: memory that it stores though nobody holds it."""

    nodes: list[RecordedOperator]
    kept: frozenset[Slot] = frozenset()


def learns(nodes: Sequence[RecordedOperator]) -> bool:
    """Whether autograd or an optimizer called some of these operators."""
    return any(node.backward or node.updates for node in nodes)


def passes(nodes: list[RecordedOperator], trains: bool) -> list[RecordingPart]:
    """The parts of a recording. A step that learns, or a part of it, is one part. trains: whether what autograd
    listened to may be the beginning of such a step."""
    if learns(nodes):
        return [RecordingPart(nodes)]
    listened = next((i for i, node in enumerate(nodes) if node.grad and trains), len(nodes))
    makes = (i for i, node in enumerate(nodes[:listened]) if any(slot.learns for slot in _written(node)))
    first = 1 + max(makes, default=-1)
    start, length, count = _repeated(nodes[first:listened])
    cuts = {0, first, *(first + start + length * i for i in range(count + 1 if count else 0)), len(nodes)}
    parts = [nodes[a:b] for a, b in pairwise(sorted(cuts))]
    last = {slot: i for i, part in enumerate(parts) for node in part for slot in _met(node)}
    read = {slot for node in nodes for i, (slot, _, _) in enumerate(node.refs) if i not in node.made.written}
    return [RecordingPart(part, _kept(part, i, last, read)) for i, part in enumerate(parts)]


def _kept(
    part: Sequence[RecordedOperator], number: int, last: dict[Slot, int], read: Container[object]
) -> frozenset[Slot]:
    """What a part stores though nobody holds it: what later parts need, and where nobody wants anything of a model's
    pass, results of the operators whose results nobody reads. last: the part that meets memory last."""
    made = [slots for slots in map(_written, part) if slots]
    later = frozenset(slot for slots in made for slot in slots if last.get(slot, number) > number)
    of_model = any(slot.learns for node in part for slot in _met(node))
    if later or not of_model or any(slot.seen() for slots in made for slot in slots):
        return later
    return frozenset(slots[0] for slots in made if not any(slot in read for slot in slots))


def _met(node: RecordedOperator) -> list[Slot]:
    return [slot for slot, _, _ in node.refs if isinstance(slot, Slot)]


def _written(node: RecordedOperator) -> list[Slot]:
    """Memory that an operator writes, if the recording made it."""
    refs = [*node.results, *(ref for i, ref in enumerate(node.refs) if i in node.made.written)]
    return [slot for slot, _, _ in refs if isinstance(slot, Slot) and slot.fresh]


def _repeated(nodes: Sequence[RecordedOperator]) -> tuple[int, int, int]:
    """Where passes begin, the operators of one, and how many there are; (0, 0, 0) where nothing comes again. Passes
    have the same operators on the same parameters: layers that are alike have parameters of their own."""
    numbers: dict[tuple[object, ...], int] = {}
    met: dict[int, int] = {}  # where a form with parameters came last
    apart: dict[int, int] = {}  # how often such a form came again so far behind itself
    row = np.empty(len(nodes), np.int64)
    for i, node in enumerate(nodes):
        own = [slot.key for slot in _met(node) if slot.learns]
        row[i] = number = numbers.setdefault((node.made.number, *own), len(numbers))
        if own:
            if number in met:
                apart[i - met[number]] = apart.get(i - met[number], 0) + 1
            met[number] = i
    best = (0, 0, 0)  # how many operators are covered, minus the length of a pass, where the first begins
    for period in sorted(apart, key=lambda p: -apart[p])[:_PERIODS]:
        begin, run = _longest(row[:-period] == row[period:])
        if run >= period:
            best = max(best, ((run // period + 1) * period, -period, begin))
    covered, length, start = best
    return (start, -length, covered // -length) if covered else (0, 0, 0)


def _longest(same: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[int, int]:
    """Where the longest run of True begins, and its length."""
    ends = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    begins, runs = ends[::2], ends[1::2] - ends[::2]
    if not len(runs):
        return 0, 0
    longest = int(runs.argmax())
    return int(begins[longest]), int(runs[longest])
