# SPDX-License-Identifier: Apache-2.0
"""A comprehension."""

import trnlab.nki as nki
import trnlab.nki.language as nl

LINT = True


@nki.jit
def kernel(x):
    tiles = [nl.load(x[i]) for i in range(4)]  # wrong
    return tiles
