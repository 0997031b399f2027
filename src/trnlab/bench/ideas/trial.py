# SPDX-License-Identifier: Apache-2.0
"""A kernel that changes are tried on: what each makes of it, its time, and whether the bits are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trnlab.bench.ideas import bits, engines, fusing, recordings, rows
from trnlab.bench.ideas.change import KernelChange
from trnlab.chips.spec import Chip
from trnlab.errors import CapacityError, ConstraintError, UsageError
from trnlab.nki.portable import PortableKernel
from trnlab.policy import Policy, base_of, shown
from trnlab.program.digest import routine_digest
from trnlab.program.routine import Routine
from trnlab.program.verify import verify_program
from trnlab.sim.timing.summary import engine_use

NO_CHANGE = "TRN849"
Options = Mapping[str, bool | int | str]
# Recordings of the kernel under policies of these names; None for one that is refused, for want of room say.
Record = Callable[[Sequence[str]], Sequence[PortableKernel | None]]


@dataclass(frozen=True)
class TriedChange:
    """A change that was made. broken: the cases in which other bits come out; None where that was not looked at."""

    change: KernelChange
    kernel: PortableKernel
    total: int  # picoseconds
    broken: tuple[str, ...] | None = None

    @property
    def keeps_numbers(self) -> bool:
        """Whether it was executed and computes the same bits."""
        return self.broken == ()


@dataclass
class KernelTrial:
    """A recorded kernel, and what its changes are held against."""

    kernel: PortableKernel
    chip: Chip
    cases: Iterable[bits.Case]  # inputs to compare on
    record: Record
    options: Options = field(default_factory=dict)  # under which it was recorded, beyond its compiler's
    recorded_only: bool = True  # no instruction was changed since, so that it can be recorded otherwise
    _expected: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises UsageError (TRN849) for kernels whose instructions depend on data, or run on several cores."""
        program = self.kernel.trace.program
        if self.kernel.recorded_anew or len(program.calls) != 1 or program.routines[0].prints:
            raise UsageError(
                "changes cannot be tried on this kernel",
                code=NO_CHANGE,
                got="loops or addresses that depend on data, several cores, or values that are printed",
                limit="one list of instructions of one core",
                remedy="`trnlab profile` and `explain` say where its time goes",
            )

    @property
    def total(self) -> int:
        """Its time in picoseconds."""
        return self.kernel.timeline(self.chip).total

    def tried(self) -> Iterator[TriedChange]:
        """All changes that can be made, each program once, timed; whether they keep the bits is not looked at yet."""
        known = {_digest(self.kernel)}
        for change, kernel in (*self._recorded(), *self._rewritten()):
            if _digest(kernel) not in known:
                known.add(_digest(kernel))
                yield TriedChange(change, kernel, kernel.timeline(self.chip).total)

    def checked(self, tried: TriedChange) -> TriedChange:
        """With the cases in which the change computes other bits."""
        broken = []
        for name, arrays in self.cases:
            if name not in self._expected:
                self._expected[name] = bits.results(self.kernel, arrays, self.chip)
            for how, execute in bits.ORDERS.items():
                if bits.differs(self._expected[name], execute(tried.kernel, arrays, self.chip)):
                    broken.append(f"{name}, {how}")
        return replace(tried, broken=tuple(broken))

    def after(self, tried: TriedChange) -> KernelTrial:
        """The trial of the changed kernel. It is compared with the original, whose results it has."""
        options = {**self.options, **tried.change.options}
        same = self.recorded_only and tried.change.make is None
        return KernelTrial(tried.kernel, self.chip, self.cases, self.record, options, same, self._expected)

    def _recorded(self) -> Iterator[tuple[KernelChange, PortableKernel]]:
        if not self.recorded_only:
            return
        policy = self.kernel.policy(self.chip).with_options(**self.options)
        some = recordings.open_for(policy)
        names = [_name(policy, {**self.options, **change.options}) for change in some]
        for change, kernel in zip(some, self.record(names)):
            if kernel is not None:
                yield change, kernel

    def _rewritten(self) -> Iterator[tuple[KernelChange, PortableKernel]]:
        routine, timeline = self.kernel.trace.routine, self.kernel.timeline(self.chip)
        active = {use.name: use.active / max(timeline.total, 1) for use in engine_use(timeline)}
        some = [*fusing.changes(routine, self.chip), *rows.changes(routine)]
        some += engines.changes(routine, self.chip, self.kernel.dialect, active)
        for change in some:
            assert change.make is not None
            made = change.make(routine, self.chip)
            kernel = None if made is None else self._with(made)
            if kernel is not None:
                yield change, kernel

    def _with(self, routine: Routine) -> PortableKernel | None:
        """The kernel with another list of instructions, verified; None for one that breaks a rule of the chip."""
        program = replace(self.kernel.trace.program, routines=(routine,))
        try:
            verify_program(replace(program, constants=dict(self.kernel.trace.arrays)), self.chip)
        except (ConstraintError, CapacityError):
            return None
        return replace(self.kernel, trace=replace(self.kernel.trace, program=program))


def _name(policy: Policy, options: Options) -> str:
    return ",".join([base_of(policy).replace(" ", "-"), *(f"{n}={shown(v)}" for n, v in options.items())])


def _digest(kernel: PortableKernel) -> str:
    return routine_digest(kernel.trace.routine)
