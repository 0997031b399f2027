# SPDX-License-Identifier: Apache-2.0
"""Two tiles with addresses of their own share bytes while both are in use."""

import numpy as np

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

ARGUMENTS = (np.ones((128, 512), np.float32),)


@nki.jit
def kernel(x):
    a = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf, name="a", address=(0, 0))
    b = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf, name="b", address=(0, 1024))
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=a, src=x)
    nisa.tensor_scalar(dst=b, data=a, op0=nl.multiply, operand0=2.0)
    nisa.tensor_tensor(dst=b, data1=b, data2=a, op=nl.add)  # wrong
    nisa.dma_copy(dst=out, src=b)
    return out
