# SPDX-License-Identifier: Apache-2.0
"""A condition on an index expression."""

from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl

LINT = True


@nki.jit
def kernel(x):
    columns = nl.arange(512)[None, :]
    if columns > 100:  # wrong
        return nl.load(x)
    return x
