# SPDX-License-Identifier: Apache-2.0
"""trn2 has no MX formats."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    tile = nl.load(x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    half = nl.zeros((128, 512), nl.bfloat16)
    packed = nl.ndarray((128, 128), nl.float8_e4m3fn_x4)
    scale = nl.ndarray((128, 128), nl.uint8)
    nisa.quantize_mx(dst=packed, src=half, dst_scale=scale)  # wrong
    nl.store(out, tile)
    return out
