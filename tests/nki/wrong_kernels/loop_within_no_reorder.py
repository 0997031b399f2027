# SPDX-License-Identifier: Apache-2.0
"""A loop on the device within no_reorder."""

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

LINT = True


@nki.jit
def kernel(x):
    tile = nl.load(x)
    with nl.no_reorder():
        for _ in nl.dynamic_range(4):  # wrong
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    return tile
