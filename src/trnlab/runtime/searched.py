# SPDX-License-Identifier: Apache-2.0
"""Lowerings that compete are timed, and the fastest program is taken: `--optimize 2` and `3`.

One choice of `compiler.choices` after the other is tried in its other values beside what is best so far; level 2 goes
through them once, level 3 again until none gains. What was tried, and what the next best would have cost, is kept
with the program. A program's time is the timing simulator's, and the bound is a number of programs, not of seconds:
so the outcome is the same on every machine, however busy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trnlab import compiler
from trnlab.chips.spec import Chip
from trnlab.compiler.choices import CHOICES, RULES
from trnlab.errors import TrnlabError
from trnlab.graph.ir import Graph
from trnlab.program.routine import Program
from trnlab.sim.timing import outline_program
from trnlab.units import PS_PER_S

ROUNDS = {2: 1, 3: 3}  # times that all choices are gone through, at most
GAIN = 1e-3  # of the time: less is no reason for another choice


@dataclass
class SearchedProgram:
    """The best of the programs that were tried."""

    program: Program
    seconds: float
    chosen: dict[str, str]
    tried: dict[str, float] = field(default_factory=dict)  # seconds by what is chosen otherwise

    @property
    def record(self) -> dict[str, Any]:
        """What is kept with the program: what is chosen otherwise than by the rules, the rules' time, and the next
        best."""
        others = {name: s for name, s in self.tried.items() if s > self.seconds}
        next_best = min(others, key=lambda name: others[name], default=None)
        return {
            "chosen": {name: value for name, value in self.chosen.items() if value != RULES[name]},
            "seconds": self.seconds,
            "tried": len(self.tried),
            "rules_s": self.tried[""],
            "next_best": next_best,
            "next_best_s": None if next_best is None else others[next_best],
        }


def searched(
    graph: Graph, chip: Chip, options: Mapping[str, Any], known: dict[Any, Any] | None, level: int, cores: int = 1
) -> SearchedProgram:
    """The fastest program of `graph` among those of the choices. options: as of `compile`; what they say of a choice
    stays. cores: that share the program, in its times."""
    routines: dict[Any, Any] = {} if known is None else known

    def timed(chosen: Mapping[str, str]) -> tuple[Program, float]:
        program = compiler.compile(graph, chip, {**options, **chosen}, routines)
        return program, outline_program(program, chip, cores=cores).total / PS_PER_S

    best = SearchedProgram(*timed({}), dict(RULES))
    best.tried[""] = best.seconds
    open_choices = [choice for choice in CHOICES if choice.name not in options]
    for _ in range(ROUNDS[level]):
        before = best.seconds
        for choice in open_choices:
            for value in choice.values:
                if value != best.chosen[choice.name]:
                    _try(best, {**best.chosen, choice.name: value}, timed)
        if best.seconds == before:
            break
    return best


def _try(
    best: SearchedProgram, chosen: dict[str, str], timed: Callable[[Mapping[str, str]], tuple[Program, float]]
) -> None:
    """Take the program of these choices where it is faster. One that cannot be made is passed over."""
    name = ", ".join(f"{key} {value}" for key, value in chosen.items() if value != RULES[key])
    if name in best.tried:
        return
    try:
        program, seconds = timed({key: value for key, value in chosen.items() if value != RULES[key]})
    except TrnlabError:
        return
    best.tried[name] = seconds
    if seconds < best.seconds * (1 - GAIN):
        best.program, best.seconds, best.chosen = program, seconds, chosen
