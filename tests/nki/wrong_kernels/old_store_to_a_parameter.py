# SPDX-License-Identifier: Apache-2.0
"""A parameter is overwritten."""

from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl

LINT = True


@nki.jit
def kernel(x):
    nl.store(x, value=nl.exp(nl.load(x)))  # wrong
    return x
