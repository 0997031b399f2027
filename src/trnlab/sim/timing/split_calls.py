# SPDX-License-Identifier: Apache-2.0
"""A program as a logical core of two NeuronCores executes it: the same calls, those that split once for each core.

What is timed is an ordinary program, whose calls say their core (`Call.core`), so that timelines, reports and what-if
know both cores; `pair` gives the same times with a row for each instruction of the undivided program.
"""

from __future__ import annotations

from dataclasses import replace

from trnlab.chips.spec import Chip
from trnlab.policy import Policy, chosen
from trnlab.program.part import part_of
from trnlab.program.routine import Call, Program
from trnlab.sim.timing.communication import uses_of
from trnlab.sim.timing.core_split import split_cores
from trnlab.sim.timing.schedule import planned


def on_two_cores(program: Program, chip: Chip, policy: Policy | None = None) -> Program:
    """`program` with each call whose work splits along its results (`split_cores`) as two, on cores 0 and 1.

    An instruction that both halves need is executed by both. Collectives and what does not split stay on core 0,
    kernels that were written for both on theirs.
    Values are not its business: it is for times, what executes is the program as it was.
    """
    policy, uses = policy or chosen(chip.name), uses_of(program, chip)
    routines, parts = list(program.routines), dict[int, tuple[int, int]]()
    for number, routine in enumerate(program.routines):
        found = None if number in uses else split_cores(routine, planned(routine, chip, policy))
        if found is not None:
            parts[number] = len(routines), len(routines) + 1
            routines += [part_of(routine, which) for which in found]
    calls: list[Call] = []
    for at_once in program.together():
        of = parts.get(at_once[0].routine) if len(at_once) == 1 else None
        if of is None:
            calls += at_once
        else:
            calls += [
                replace(at_once[0], routine=of[0]),
                replace(at_once[0], routine=of[1], core=1, concurrent=True),
            ]
    return replace(program, routines=tuple(routines), calls=tuple(calls))
