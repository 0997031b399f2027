# SPDX-License-Identifier: Apache-2.0
"""Masks are combined with &."""

from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl

LINT = True


@nki.jit
def kernel(x):
    rows, columns = nl.mgrid[0:128, 0:512]
    tile = nl.load(x[rows, columns], mask=(rows < 100 and columns < 500))  # wrong
    return tile
