# SPDX-License-Identifier: Apache-2.0
"""A kernel's signature has a *."""

import trnlab.nki as nki

LINT = True


@nki.jit
def kernel(x, *, scale=2.0):  # wrong
    return x
