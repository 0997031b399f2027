# SPDX-License-Identifier: Apache-2.0
"""Time: one in-order pass over the instructions of a program gives its timeline, in integer picoseconds.

timeline = time_program(program, chip)
summary = summarise(timeline)
"""

from trnlab.sim.timing.assumptions import Assumption, assumptions
from trnlab.sim.timing.cost import DmaCost, InstructionCost, dma_cost, work_cost
from trnlab.sim.timing.logical_core import on_both, time_pair
from trnlab.sim.timing.outline import Outline, outline_of, outline_program
from trnlab.sim.timing.split_calls import on_two_cores
from trnlab.sim.timing.summary import Summary, critical_path, summarise
from trnlab.sim.timing.timer import estimate, time_program, time_routine

__all__ = [
    "Assumption",
    "DmaCost",
    "InstructionCost",
    "Outline",
    "Summary",
    "assumptions",
    "critical_path",
    "dma_cost",
    "estimate",
    "on_both",
    "on_two_cores",
    "outline_of",
    "outline_program",
    "summarise",
    "time_pair",
    "time_program",
    "time_routine",
    "work_cost",
]
