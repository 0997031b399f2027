# SPDX-License-Identifier: Apache-2.0
"""Which chip kernels are recorded for, and what they ask of the hardware's compiler."""

from __future__ import annotations

import os

from trnlab.chips.spec import Chip
from trnlab.errors import UsageError
from trnlab.runtime import session

LATEST = "0.6"


def default_chip() -> Chip:
    """The chip of the session, else the one that NEURON_PLATFORM_TARGET_OVERRIDE names, else trn2.

    Raises UsageError for a name that is none. See `session.kernel_chip`.
    """
    return session.kernel_chip()


def release() -> tuple[int, int]:
    """The release of NKI whose instructions are simulated: TRNLAB_NKI_RELEASE (as "0.4"), else the latest known.

    Releases differ in how quantize_mx chooses its scales. Raises UsageError for what is not a release.
    """
    text = os.environ.get("TRNLAB_NKI_RELEASE", LATEST)
    major, _, minor = text.partition(".")
    try:
        return int(major), int(minor.partition(".")[0])
    except ValueError:
        raise UsageError(
            f"TRNLAB_NKI_RELEASE={text!r} is not a release of NKI",
            code="TRN490",
            limit="two numbers, as in 0.4",
            got=text,
            remedy=f"set it to a release, or leave it out for {LATEST}",
        ) from None


def static_dma(flags: str) -> bool:
    """Whether descriptors lie ready in a ring instead of being made when a transfer is issued.

    So it is with --disable-dge among the compiler's flags of a kernel, or in NEURON_CC_FLAGS.

    Source: nki.benchmark(additional_compile_opt=...) of the 2.2x documentation of aws-neuron-sdk.
    """
    return "--disable-dge" in f"{flags} {os.environ.get('NEURON_CC_FLAGS', '')}".split()
