# SPDX-License-Identifier: Apache-2.0
"""Time: one in-order pass over the instructions of a program gives its timeline, in integer picoseconds.

timeline = time_program(program, chip)
summary = summarise(timeline)
"""

from trnlab.sim.timing.assumptions import Assumption, assumptions
from trnlab.sim.timing.cost import Cost, DmaCost, dma_cost, work_cost
from trnlab.sim.timing.gang import time_gang
from trnlab.sim.timing.summary import Summary, critical_path, summarise
from trnlab.sim.timing.timer import estimate, time_program, time_routine

__all__ = [
    "Assumption",
    "Cost",
    "DmaCost",
    "Summary",
    "assumptions",
    "critical_path",
    "dma_cost",
    "estimate",
    "summarise",
    "time_gang",
    "time_program",
    "time_routine",
    "work_cost",
]
