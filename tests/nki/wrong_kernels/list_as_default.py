# SPDX-License-Identifier: Apache-2.0
"""A kernel takes a list."""

import trnlab.nki as nki

LINT = True


@nki.jit
def kernel(x, order=[0, 1]):  # noqa: B006  # wrong
    return x
