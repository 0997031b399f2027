# SPDX-License-Identifier: Apache-2.0
"""An object of a class that is no NKIObject."""

import trnlab.nki as nki

LINT = True


class Config:
    size = 128


@nki.jit
def kernel(x):
    config = Config()  # wrong
    print(config.size)
    return x
