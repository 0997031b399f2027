# SPDX-License-Identifier: Apache-2.0
"""Batch norms whose running statistics are plain averages of all batches so far (`momentum=None`).

PyTorch asks for the count of batches as a Python number to divide by it, and a captured step knows no values. Here
the count stays a tensor: the statistics of one batch are what a momentum of 1 leaves, and are averaged in afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import batch_norm

from trnlab.frontends.torch.pytorch.tensors import BatchNorms

_pytorchs = BatchNorms.forward


def _forward(self: Any, input: Tensor) -> Tensor:
    averages = self.momentum is None and self.training and self.track_running_stats
    if not averages or self.num_batches_tracked is None:
        return _pytorchs(self, input)
    self._check_input_dim(input)
    self.num_batches_tracked.add_(1)
    mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
    result = batch_norm(input, mean, variance, self.weight, self.bias, True, 1.0, self.eps)
    with torch.no_grad():
        share = 1.0 / self.num_batches_tracked.to(mean.dtype)
        self.running_mean.copy_(self.running_mean * (1 - share) + mean * share)
        self.running_var.copy_(self.running_var * (1 - share) + variance * share)
    return result


@contextmanager
def averages_as_tensors() -> Iterator[None]:
    """Within the block such batch norms divide by a tensor. Those of several ranks go another way."""
    with patch.object(BatchNorms, "forward", _forward):
        yield
