# SPDX-License-Identifier: Apache-2.0
"""A name that is not there."""

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

LINT = True


@nki.jit
def kernel(x):
    tile = nl.load(x)
    nisa.tensor_tenser(dst=tile, data1=tile, data2=tile, op=nl.add)  # wrong
    return tile
