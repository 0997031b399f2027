# SPDX-License-Identifier: Apache-2.0
"""Batch norms on the host whose batch and weights are in 16 bits while running averages, or statistics, are in 32.

CUDA's kernels take that but for images' backward pass, and compute in 32 bits: mixed precision of FSDP makes it of
every model with such layers.
Those of PyTorch's for the host want weights in the format of either all of the batch or all of the averages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_BACKWARD = _aten.native_batch_norm_backward.default
OPERATORS = (
    _aten.native_batch_norm.default,
    _aten._native_batch_norm_legit.default,
    _aten._native_batch_norm_legit_no_training.default,
    _BACKWARD,
)
_NARROW = (torch.bfloat16, torch.float16)
_WIDENED = ("weight", "bias", "save_mean", "save_invstd")
_ONLY_READ = ("running_mean", "running_var")  # on the way back


def called(op: Any, args: Sequence[Any]) -> Any:
    """The results of a batch norm on tensors of the host; gradients of weights have the weights' format."""
    if op not in OPERATORS:
        return op(*args)
    given = {argument.name: value for argument, value in zip(op._schema.arguments, args)}
    weight, wide_ones = given["weight"], (given["running_mean"], given.get("save_mean"))
    if given["input"].dtype not in _NARROW or all(v is None or v.dtype is not torch.float32 for v in wide_ones):
        return op(*args)
    widened = (*_WIDENED, *_ONLY_READ) if op is _BACKWARD else _WIDENED
    wide = [v.float() if name in widened and isinstance(v, Tensor) else v for name, v in given.items()]
    results = op(*wide)
    if op is not _BACKWARD or weight is None:
        return results
    of_batch, *of_weights = results
    return (of_batch, *(None if g is None else g.to(weight.dtype) for g in of_weights))
