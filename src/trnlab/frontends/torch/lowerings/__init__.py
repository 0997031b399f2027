# SPDX-License-Identifier: Apache-2.0
"""How each operator of PyTorch becomes graph ops, one module per family."""

from trnlab.frontends.torch.lowerings import (
    attention,
    batch_norm,
    convolution,
    division,
    elementwise,
    embedding_bag,
    foreach,
    functions,
    index,
    matmul,
    nn,
    pooling,
    random,
    reduce,
    resample,
    shape,
    sorting,
    sources,
)
from trnlab.frontends.torch.lowerings.registry import LOWERINGS, Randomness, Refused, Site

__all__ = [
    "LOWERINGS",
    "Randomness",
    "Refused",
    "Site",
    "attention",
    "batch_norm",
    "convolution",
    "division",
    "elementwise",
    "embedding_bag",
    "foreach",
    "functions",
    "index",
    "matmul",
    "nn",
    "pooling",
    "random",
    "reduce",
    "resample",
    "shape",
    "sorting",
    "sources",
]
