# SPDX-License-Identifier: Apache-2.0
"""trn2 has no exponential."""

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

LINT = True


@nki.jit
def kernel(x):
    tile = nl.load(x)
    nisa.exponential(dst=tile, src=tile)  # wrong
    return tile
