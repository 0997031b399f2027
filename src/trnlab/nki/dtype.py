# SPDX-License-Identifier: Apache-2.0
"""nki.dtype: the number formats, as libraries of kernels import them; the same objects as in nki.language."""

from __future__ import annotations

from trnlab.lang.formats import FORMATS, Format

DType = Format

bool_ = FORMATS["bool"]
int8, int16, int32 = FORMATS["int8"], FORMATS["int16"], FORMATS["int32"]
uint8, uint16, uint32 = FORMATS["uint8"], FORMATS["uint16"], FORMATS["uint32"]
float16, float32, bfloat16, tfloat32 = (FORMATS[n] for n in ("float16", "float32", "bfloat16", "tfloat32"))
float8_e4m3, float8_e4m3fn, float8_e5m2 = (FORMATS[n] for n in ("float8_e4m3", "float8_e4m3fn", "float8_e5m2"))
float8_e8m0fnu = FORMATS["float8_e8m0fnu"]
float8_e5m2_x4, float8_e4m3fn_x4 = FORMATS["float8_e5m2_x4"], FORMATS["float8_e4m3fn_x4"]
float4_e2m1fn_x4 = FORMATS["float4_e2m1fn_x4"]
