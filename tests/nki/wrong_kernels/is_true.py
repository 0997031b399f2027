# SPDX-License-Identifier: Apache-2.0
"""Identity is compared."""

import trnlab.nki as nki
import trnlab.nki.isa as nisa

LINT = True


@nki.jit
def kernel(x, flag=False):
    if flag is True:  # wrong
        nisa.memset(dst=x, value=0.0)
    return x
