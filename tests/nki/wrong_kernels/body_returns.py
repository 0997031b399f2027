# SPDX-License-Identifier: Apache-2.0
"""The body of fori_loop returns a value."""

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

LINT = True


@nki.jit
def kernel(x):
    tile = nl.load(x)

    def body(i):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        return i  # wrong

    nl.fori_loop(0, 4, body)
    return tile
