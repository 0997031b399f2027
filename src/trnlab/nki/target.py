# SPDX-License-Identifier: Apache-2.0
"""Which chip kernels are recorded for."""

from __future__ import annotations

import os

from trnlab.chips import catalog
from trnlab.chips.spec import Chip

VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
_GENERATIONS = {"gen2": "trn1", "gen3": "trn2", "gen4": "trn3"}
DEFAULT = "trn2"


def default_chip() -> Chip:
    """The chip that NEURON_PLATFORM_TARGET_OVERRIDE names (trn1, inf2, trn2, trn3, gen2, gen3, gen4), else trn2.

    Raises UsageError for a name that is none.
    """
    name = os.environ.get(VARIABLE) or DEFAULT
    return catalog.get(_GENERATIONS.get(name, name))
