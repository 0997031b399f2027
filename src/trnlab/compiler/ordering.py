# SPDX-License-Identifier: Apache-2.0
"""The order of a routine's instructions.

Lowerings record what belongs together side by side: a few sweeps op by op, a product with what is transposed for the
next one. Engines take their instructions in order, and wait where the first is not ready though the second is. A list
scheduler puts forward what could start sooner, and the timing simulator says whether that is faster.
"""

from __future__ import annotations

from trnlab.chips.spec import Chip
from trnlab.program import Routine
from trnlab.program.transforms import in_order, keeps_registers
from trnlab.sim.timing.plan import forget
from trnlab.sim.timing.schedule import sooner_order
from trnlab.sim.timing.timer import calls_ps

WINDOW = 64  # instructions past the first that waits; with 256 and with all of them fewer routines are faster
LEAST, MOST = 64, 1 << 19  # instructions of a routine that is worth it, and that is not too long for it
LEAST_GAIN = 0.01


def in_sooner_order(routine: Routine, chip: Chip) -> Routine:
    """The routine in another order where it takes less time then; no value changes by it."""
    if not LEAST <= len(routine) <= MOST or routine.prints or keeps_registers(routine):
        return routine
    other = in_order(routine, sooner_order(routine, chip, WINDOW))
    if calls_ps([(other, 0)], chip) > (1 - LEAST_GAIN) * calls_ps([(routine, 0)], chip):
        return routine
    forget(routine, chip)
    return other
