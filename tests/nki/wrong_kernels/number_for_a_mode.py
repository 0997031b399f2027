# SPDX-License-Identifier: Apache-2.0
"""An enumeration's number."""

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

LINT = True


@nki.jit
def kernel(x):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x, dge_mode=2)  # wrong
    return tile
