# SPDX-License-Identifier: Apache-2.0
"""Which chip kernels are recorded for."""

from __future__ import annotations

from trnlab.chips.spec import Chip
from trnlab.runtime import session


def default_chip() -> Chip:
    """The chip of the session, else the one that NEURON_PLATFORM_TARGET_OVERRIDE names, else trn2.

    Raises UsageError for a name that is none. See `session.kernel_chip`.
    """
    return session.kernel_chip()
