# SPDX-License-Identifier: Apache-2.0
"""Copies of a step's inputs, which it may write to: one for each tensor of the model and the optimizer.

PyTorch takes a millisecond to trace an operator, and a step has hundreds of these copies. What they are is known, so
their nodes are put into the trace as they are.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.pytorch.dispatcher import functions_not_overridden
from trnlab.frontends.torch.pytorch.fakes import FakeTensor, new_like
from trnlab.frontends.torch.pytorch.graphs import node_of, put_node


def copy_of(base: Tensor) -> Tensor:
    """What `base.detach().clone()` is while a step is traced."""
    with functions_not_overridden():
        node = node_of(base)
        if node is not None and isinstance(base, FakeTensor) and fills(base):
            copy: Tensor = new_like(base)
            put_node(torch.ops.aten.clone.default, (node,), copy)
            return copy
    return base.detach().clone()


def is_traced_as_it_is(tensor: Tensor) -> bool:
    """Whether the active trace can return a tensor by its own node: nobody has given it another form since."""
    with functions_not_overridden():
        node = node_of(tensor)
        return node is not None and form_of(node.meta.get("val")) == form_of(tensor)


def form_of(tensor: Any) -> Hashable:
    """Shape, strides, format and device of a tensor, None for what is none."""
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.device) if isinstance(tensor, Tensor) else None


def fills(tensor: Tensor) -> bool:
    """Whether a tensor has each element of its memory once: a view of it by strides sees nothing else."""
    count = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size != 1):
        if stride != count:
            return False
        count *= size
    return tensor.untyped_storage().nbytes() == count * tensor.element_size()
