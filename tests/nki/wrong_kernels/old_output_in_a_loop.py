# SPDX-License-Identifier: Apache-2.0
"""An output is made inside a loop."""

from trnlab.nki import neuronxcc as nki
from trnlab.nki.neuronxcc import language as nl

LINT = True


@nki.jit
def kernel(x):
    for i in nl.affine_range(4):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)  # wrong
        nl.store(out, value=nl.load(x[i]))
    return x
