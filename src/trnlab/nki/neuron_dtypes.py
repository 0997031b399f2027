# SPDX-License-Identifier: Apache-2.0
"""neuron_dtypes: NumPy types of the narrow formats."""

from __future__ import annotations

from ml_dtypes import bfloat16, float8_e4m3, float8_e4m3fn, float8_e5m2, float8_e8m0fnu

__all__ = ["bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
