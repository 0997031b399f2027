# SPDX-License-Identifier: Apache-2.0
"""The numbers: routines and programs executed on byte-true simulated memories."""

from trnlab.sim.functional.gang import GangRun
from trnlab.sim.functional.machine import POISON, Machine, RunOptions
from trnlab.sim.functional.programs import run_program

__all__ = ["POISON", "GangRun", "Machine", "RunOptions", "run_program"]
