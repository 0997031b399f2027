# SPDX-License-Identifier: Apache-2.0
"""Functions of nki.isa return no tile."""

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

LINT = True


@nki.jit
def kernel(x):
    tile = nl.load(x)
    doubled = nisa.tensor_scalar(tile, op0=nl.multiply, operand0=2.0)  # wrong
    return doubled
