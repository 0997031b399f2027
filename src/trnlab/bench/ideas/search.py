# SPDX-License-Identifier: Apache-2.0
"""Which changes gain, and which of them do together: the best is made, then the best after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trnlab.bench.ideas.trial import NO_CHANGE, KernelTrial, TriedChange
from trnlab.errors import UsageError

WORTH = 0.005  # of the time: what gains less is no proposal
STEPS = 8  # of a ladder
SHOWN = 8  # proposals whose bits are looked at
Progress = Callable[[str], None]


@dataclass(frozen=True)
class IdeaStep:
    """A step of a ladder: the change, and the time with all changes so far."""

    tried: TriedChange
    before: int  # picoseconds

    @property
    def factor(self) -> float:
        """How much faster the step makes it."""
        return self.before / max(self.tried.total, 1)


def _silent(what: str) -> None:
    """Nobody reads progress."""


def proposed(trial: KernelTrial, progress: Progress = _silent) -> tuple[list[TriedChange], int]:
    """The changes that gain, the most first, each with whether it keeps the numbers; and how many were tried."""
    total, found = trial.total, sorted(trial.tried(), key=lambda t: t.total)
    gaining = {_subject(t): t for t in reversed(found) if t.total < total * (1 - WORTH)}  # the best of each
    checked = []
    for tried in sorted(gaining.values(), key=lambda t: t.total)[:SHOWN]:
        progress(f"{tried.change.name}: the same bits?")
        checked.append(trial.checked(tried))
    return checked, len(found)


def _subject(tried: TriedChange) -> str:
    """What a change is about: rows of other lengths, or other engines for the same line, are about the same."""
    name = tried.change.name
    return name.rpartition(":")[0] if name.count(":") > 1 else name


Climbed = tuple[KernelTrial, list[IdeaStep]]


def climbed(trial: KernelTrial, steps: int = STEPS, progress: Progress = _silent) -> Climbed:
    """The best change that keeps the numbers, then the best after it, until none gains; and the kernel in the end."""
    made: list[IdeaStep] = []
    for _ in range(steps):
        best = _best(trial, progress)
        if best is None:
            break
        made.append(IdeaStep(best, trial.total))
        progress(f"{best.change.name}: {made[-1].factor:.3f} x")
        trial = trial.after(best)
    return trial, made


def _best(trial: KernelTrial, progress: Progress) -> TriedChange | None:
    total = trial.total
    for tried in sorted(trial.tried(), key=lambda t: t.total):
        if tried.total >= total * (1 - WORTH):
            return None
        checked = trial.checked(tried)
        if checked.keeps_numbers:
            return checked
        progress(f"{tried.change.name} changes the numbers")
    return None


def applied(trial: KernelTrial, names: Sequence[str]) -> Climbed:
    """Make the changes of these names, one after the other. Raises UsageError (TRN849) for one that cannot be made,
    or that computes other numbers."""
    made = []
    for name in names:
        found = {t.change.name: t for t in trial.tried()}
        if name not in found:
            raise _refused(name, "there is no such change here", ", ".join(sorted(found)) or "none")
        checked = trial.checked(found[name])
        if not checked.keeps_numbers:
            raise _refused(name, "the change computes other numbers", "; ".join(checked.broken or ()))
        made.append(IdeaStep(checked, trial.total))
        trial = trial.after(checked)
    return trial, made


def _refused(name: str, what: str, limit: str) -> UsageError:
    return UsageError(what, code=NO_CHANGE, got=name, limit=limit, remedy="`--ideas` lists those that can be made")
