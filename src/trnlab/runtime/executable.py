# SPDX-License-Identifier: Apache-2.0
"""A compiled program with what is known of it: where it came from, how long it takes, what memory it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trnlab.chips.spec import Chip
from trnlab.graph.flops import AskedWork
from trnlab.hbm import HBM
from trnlab.policy import Policy, chosen
from trnlab.program.routine import Program
from trnlab.runtime.memory import Forecast, forecast_program
from trnlab.sim.timing import Outline, on_two_cores, outline_of, outline_program, time_program
from trnlab.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Executable:
    """A compiled graph. `metadata` is what its cache entry says about it; see `device`."""

    program: Program
    graph: str
    metadata: dict[str, Any]
    chip: Chip
    cache: str  # "hit", "miss" or "off"
    seconds: float  # what this process spent to get it, by compiling or by reading
    # what the hardware's compiler is taken to make of the kernels in it
    policy: Policy = field(default_factory=chosen)
    # of a kernel, its time in picoseconds with another value of an option of the policy, where that was asked for
    alternatives: dict[tuple[str, str], int] = field(default_factory=dict)
    cores: int = 1  # one or two, that share the program in its times

    @property
    def key(self) -> str:
        """Its key in the cache."""
        return str(self.metadata["key"])

    @property
    def name(self) -> str:
        """The graph's name."""
        return str(self.metadata["name"])

    @property
    def asked(self) -> AskedWork | None:
        """What its graph asks of any chip; None of a kernel, whose model nobody knows."""
        found = self.metadata.get("asked")
        if not found:
            return None
        return AskedWork(self.metadata["model_flops"], found["bytes"], found["chain"], tuple(found["formats"]))

    @property
    def is_kernel(self) -> bool:
        """Whether it is a kernel that a script called by itself, and no graph."""
        return self.metadata.get("kind") == "kernel"

    @cached_property
    def laid(self) -> Program:
        """The program as its cores execute it: what the rows of `timeline` are of."""
        if self.cores == 1:
            return self.program
        return on_two_cores(self.program, self.chip, self.policy)

    @cached_property
    def timeline(self) -> Timeline:
        """When each instruction of one execution starts and ends, on each core; simulated on first use."""
        return time_program(self.laid, self.chip, policy=self.policy)

    @cached_property
    def outline(self) -> Outline:
        """What of the timeline takes little memory; simulated without the rest where nobody has asked for that."""
        if "timeline" in self.__dict__ and self.laid is self.program:
            return outline_of(self.timeline, self.program)
        return self.outlined(self.program)

    @property
    def total_ps(self) -> int:
        """Picoseconds of one execution."""
        return (self.timeline if "timeline" in self.__dict__ else self.outline).total

    def outlined(self, program: Program) -> Outline:
        """The outline of this program, or of it under other circumstances, on the cores that execute it."""
        return outline_program(program, self.chip, policy=self.policy, cores=self.cores)

    @cached_property
    def forecast(self) -> Forecast:
        """HBM that one execution takes at its peak."""
        return forecast_program(self.program, self.chip, self.cores)

    def other_hbm_bytes(self) -> int:
        """Bytes of HBM in use beside its own, where it is about to run: see `Resident.other_bytes`."""
        given = set(self.program.inputs)
        return HBM.other_bytes(self.forecast.peak_bytes, sum(t.nbytes for t in self.program.tensors if t.id in given))
