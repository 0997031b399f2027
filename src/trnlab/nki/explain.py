# SPDX-License-Identifier: Apache-2.0
"""What the hardware's compiler is taken to make of one kernel: each option in turn is switched off, and it is timed.

print(explained(kernel, x, y))

with watching(lambda found: print(found)):
    kernel(x, y)                            # explained at its first call
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from trnlab import policy
from trnlab.errors import CapacityError
from trnlab.policy import AS_WRITTEN, Option, Policy
from trnlab.program.changes import PassChange, RecordingSize, Spill, together
from trnlab.program.routine import Routine
from trnlab.timeline import Timeline
from trnlab.units import format_time

_watchers: list[tuple[Callable[[Explained], None], set[int]]] = []


class RecordedKernel(Protocol):
    """A kernel, see `trnlab.nki.kernel`."""

    function: Any

    @property
    def here(self) -> Policy:
        """The policy under which it is recorded and timed here and now."""
        ...

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """The recorded kernel for these arguments."""
        ...

    def timeline(self, *args: Any, **kwargs: Any) -> Timeline:
        """When each instruction would run."""
        ...


@dataclass(frozen=True)
class Outcome:
    """A kernel under one policy. total: picoseconds; None where it is refused for room."""

    instructions: int
    total: int | None


@dataclass(frozen=True)
class Explained:
    """What a policy made of a kernel."""

    name: str
    policy: Policy
    whole: Outcome
    as_written: Outcome  # the kernel with everything off that can be
    without: dict[str, Outcome]  # the kernel with one option switched off
    changes: tuple[PassChange, ...]  # by its passes, of all cores together
    spills: tuple[Spill, ...]  # what left a memory

    def gain(self, option: str) -> int | None:
        """Picoseconds that the option takes off the kernel's time; None where it is refused without."""
        other = self.without[option].total
        return None if other is None or self.whole.total is None else other - self.whole.total

    def __str__(self) -> str:
        from trnlab.profile.compiled import by_line, changed, spilled  # pages load when there is something to show

        lines = [
            f"{self.name}, {self.policy}: {_told(self.whole)}",
            f"    as written: {_told(self.as_written)}",
            f"    {'without':<12}{'takes':>12}{'more':>8}   what it did",
        ]
        did = {c.option: changed(_entry(c)).removeprefix(f"{c.option}: ") for c in self.changes}
        for name, other in self.without.items():
            lines.append(f"    {name:<12}{_time(other):>12}{self._share(name):>8}   {did.get(name, '')}".rstrip())
        lines += [f"    spilled: {spilled(group, '')}" for group in by_line(_rows(self.name, self.spills))]
        return "\n".join(lines)

    def _share(self, option: str) -> str:
        gain = self.gain(option)
        return "" if gain is None or not self.whole.total else f"{gain / self.whole.total:+.1%}"


def explained(kernel: RecordedKernel, *args: Any, **kwargs: Any) -> Explained:
    """Record and time a kernel under the policy that holds here, and without each of its options that are on."""
    trace, chosen = kernel.trace(*args, **kwargs), kernel.here
    routines = list(trace.program.routines)
    used = {c.option for r in routines for c in r.changes} | ({"spill"} if any(r.spills for r in routines) else set())

    def outcome(tried: Policy) -> Outcome:
        with policy.use(tried):
            try:
                timeline = kernel.timeline(*args, **kwargs)
            except CapacityError:
                return Outcome(0, None)
        return Outcome(len(timeline), timeline.total)

    without = {o.name: outcome(chosen.with_options(**{o.name: False})) for o in _on(chosen, used)}
    spills = together(s for r in routines for s in r.spills)
    whole, written = outcome(chosen), outcome(AS_WRITTEN)
    return Explained(kernel.function.__name__, chosen, whole, written, without, _sums(routines), spills)


def _on(chosen: Policy, used: set[str]) -> list[Option]:
    """The switches that are on, and that did something or may have."""
    switches = [o for o in policy.options() if isinstance(o.default, bool) and getattr(chosen, o.name)]
    return [o for o in switches if o.stage == policy.TIME or o.name in used]


def _sums(routines: list[Routine]) -> tuple[PassChange, ...]:
    """What each pass did to all cores together."""
    found: dict[str, PassChange] = {}
    for change in (c for r in routines for c in r.changes):
        known = found.get(change.option)
        found[change.option] = (
            change
            if known is None
            else PassChange(change.option, _sum(known.before, change.before), _sum(known.after, change.after))
        )
    return tuple(found.values())


def _sum(a: RecordingSize, b: RecordingSize) -> RecordingSize:
    return RecordingSize(a.instructions + b.instructions, a.tiles + b.tiles, a.moved + b.moved)


def _entry(change: PassChange) -> dict[str, Any]:
    """As in the summary of a run."""
    sides = change.before, change.after
    return {
        "option": change.option,
        "instructions": [s.instructions for s in sides],
        "tiles": [s.tiles for s in sides],
        "moved_bytes": [s.moved for s in sides],
    }


def _told(outcome: Outcome) -> str:
    if outcome.total is None:
        return "does not fit"
    return f"{format_time(outcome.total)}, {outcome.instructions:,} instructions"


def _time(outcome: Outcome) -> str:
    return "does not fit" if outcome.total is None else format_time(outcome.total)


def _rows(name: str, spills: Iterable[Spill]) -> list[dict[str, Any]]:
    """As in the summary of a run."""
    return [
        {
            "kernel": name,
            "tile": s.tile,
            "line": str(s.where or ""),
            "from": s.source,
            "to": s.target,
            "times": s.times,
            "save_bytes": s.saved,
            "reload_bytes": s.reloaded,
        }
        for s in spills
    ]


@contextmanager
def watching(tell: Callable[[Explained], None]) -> Iterator[None]:
    """Within the block kernels that are called are explained to `tell`, once for each recording."""
    watcher = tell, set[int]()
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def called(kernel: RecordedKernel, routine: Routine, args: Any, kwargs: Any) -> None:
    """A kernel was called with these arguments, which gave this recording."""
    for tell, seen in _watchers:
        if id(routine) not in seen:
            seen.add(id(routine))
            tell(explained(kernel, *args, **kwargs))
