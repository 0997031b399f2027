# SPDX-License-Identifier: Apache-2.0
"""Checks of a whole routine: what is read before it is written, overwritten while in use, or ordered by nothing.

findings = check_routine(routine, chip, Scene(filled=..., results=...))
"""

from trnlab.sim.checks.findings import CheckFinding
from trnlab.sim.checks.routine import Returned, Scene, check_routine

__all__ = ["CheckFinding", "Returned", "Scene", "check_routine"]
