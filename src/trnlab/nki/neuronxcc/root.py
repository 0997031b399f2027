# SPDX-License-Identifier: Apache-2.0
"""The package `neuronxcc`, of which only `nki` exists here."""

from __future__ import annotations

from trnlab.nki import neuronxcc as nki

__all__ = ["nki"]
