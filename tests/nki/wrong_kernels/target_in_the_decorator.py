# SPDX-License-Identifier: Apache-2.0
"""nki.jit lost platform_target."""

import trnlab.nki as nki

LINT = True


@nki.jit(platform_target="trn2")  # wrong
def kernel(x):
    return x
