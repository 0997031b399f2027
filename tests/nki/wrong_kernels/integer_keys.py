# SPDX-License-Identifier: Apache-2.0
"""A dict with integer keys."""

import trnlab.nki as nki

LINT = True


@nki.jit
def kernel(x):
    banks = {0: "a", 1: "b"}  # wrong
    print(banks)
    return x
