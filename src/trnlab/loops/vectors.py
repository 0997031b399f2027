# SPDX-License-Identifier: Apache-2.0
"""The vector registers that the loops are made for: those of this machine, or of the one that they were made for."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trnlab.loops import prebuilt


def of(features: Mapping[str, bool]) -> tuple[int, int]:
    """fp32 lanes of one vector register of a processor with these features, and how many registers there are."""
    if features.get("avx512f"):
        return 16, 32
    if features.get("avx2"):
        return 8, 16
    return 4, 32 if features.get("neon") else 16


def _in_use() -> tuple[int, int]:
    if (made := prebuilt.vectors()) is not None:
        return made["lanes"], made["registers"]
    return of(prebuilt.features_of(os.environ.get(prebuilt.PROCESSOR)))


LANES, REGISTERS = _in_use()
