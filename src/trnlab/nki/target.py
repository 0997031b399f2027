# SPDX-License-Identifier: Apache-2.0
"""Which chip kernels are recorded for, and what they ask of the hardware's compiler."""

from __future__ import annotations

import os

from trnlab.chips.spec import Chip
from trnlab.runtime import session


def default_chip() -> Chip:
    """The chip of the session, else the one that NEURON_PLATFORM_TARGET_OVERRIDE names, else trn2.

    Raises UsageError for a name that is none. See `session.kernel_chip`.
    """
    return session.kernel_chip()


def static_dma(flags: str) -> bool:
    """Whether descriptors lie ready in a ring instead of being made when a transfer is issued.

    So it is with --disable-dge among the compiler's flags of a kernel, or in NEURON_CC_FLAGS.

    Source: nki.benchmark(additional_compile_opt=...) of the 2.2x documentation of aws-neuron-sdk.
    """
    return "--disable-dge" in f"{flags} {os.environ.get('NEURON_CC_FLAGS', '')}".split()
