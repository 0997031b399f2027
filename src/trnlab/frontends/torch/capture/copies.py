# SPDX-License-Identifier: Apache-2.0
"""Copies of a step's inputs, which it may write to: one for each tensor of the model and the optimizer.

PyTorch takes a millisecond to trace an operator, and a step has hundreds of these copies. What they are is known, so
their nodes are put into the trace as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trnlab.frontends.torch.pytorch.fakes import FakeTensor, new_like
from trnlab.frontends.torch.pytorch.graphs import node_of, put_node


def copy_of(base: Tensor) -> Tensor:
    """What `base.detach().clone()` is while a step is traced."""
    node = node_of(base)
    if node is None or not isinstance(base, FakeTensor) or not fills(base):
        return base.detach().clone()
    copy: Tensor = new_like(base)
    put_node(torch.ops.aten.clone.default, (node,), copy)
    return copy


def fills(tensor: Tensor) -> bool:
    """Whether a tensor has each element of its memory once: a view of it by strides sees nothing else."""
    count = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size != 1):
        if stride != count:
            return False
        count *= size
    return tensor.untyped_storage().nbytes() == count * tensor.element_size()
