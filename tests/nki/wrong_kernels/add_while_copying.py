# SPDX-License-Identifier: Apache-2.0
"""dma_copy no longer adds."""

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl

LINT = True


@nki.jit
def kernel(x, out):
    nisa.dma_copy(dst=out, src=x, dst_rmw_op=nl.add)  # wrong
    return out
