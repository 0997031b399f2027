# SPDX-License-Identifier: Apache-2.0
"""An arange of one dimension indexes a tile."""

from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl

LINT = True


@nki.jit
def kernel(x):
    rows = nl.arange(128)
    tile = nl.load(x[rows, 0])  # wrong
    return tile
