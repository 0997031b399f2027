# SPDX-License-Identifier: Apache-2.0
"""The package `neuronxcc`, of which only `nki` exists here."""

from __future__ import annotations

import logging

from trnlab.nki import neuronxcc as nki

__all__ = ["nki"]

if not hasattr(logging, "OFF"):  # scripts say logging.disable(logging.OFF): the vendor's package adds the level
    logging.OFF = logging.CRITICAL + 10  # type: ignore[attr-defined]
