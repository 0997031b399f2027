# SPDX-License-Identifier: Apache-2.0
"""An index names a row that the table does not have."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((100, 64), np.float32), np.full((128, 1), 100, np.int32))


@nki.jit
def kernel(table, index):
    rows = nl.load(index)
    tile = nl.ndarray((128, 64), table.dtype, buffer=nl.sbuf)
    out = nl.ndarray((128, 64), table.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=table.vector_select(0, rows))  # wrong
    nisa.dma_copy(dst=out, src=tile)
    return out
