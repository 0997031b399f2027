# SPDX-License-Identifier: Apache-2.0
"""Recorded kernels on the simulated chip: executed, and told to the session."""

from __future__ import annotations

from collections.abc import Iterable

from trnlab.chips.spec import Chip
from trnlab.nki.tracing.arrays import Array
from trnlab.policy import Policy
from trnlab.program.routine import Program
from trnlab.runtime import kernels
from trnlab.sim.functional import Machine, RunOptions, run_program


def execute(
    program: Program, memory: Iterable[Array], chip: Chip, policy: Policy, options: RunOptions | None = None
) -> None:
    """Run a kernel's program on one array per tensor; what it writes to is written in place.

    policy: what the hardware's compiler is taken to make of it. options: those of the session without this.
    """
    machine = Machine(chip, options or kernels.options(), sbuf_bytes=program.sbuf_bytes)
    run_program(program, dict(enumerate(memory)), chip, machine=machine)
    kernels.called(program, chip, policy)
