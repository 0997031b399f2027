# SPDX-License-Identifier: Apache-2.0
"""Tiles are written by dst=."""

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

LINT = True


@nki.jit
def kernel(x):
    tile = nl.ndarray(x.shape, x.dtype)
    tile[...] = nisa.dma_copy(dst=tile, src=x)  # wrong
    return tile
