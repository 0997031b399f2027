# SPDX-License-Identifier: Apache-2.0
"""Fake tensors: shapes and types without values, with which PyTorch traces."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._library.fake_class_registry import FakeScriptObject
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorDeviceMismatchError,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeScriptObject",
    "FakeTensor",
    "FakeTensorDeviceMismatchError",
    "FakeTensorMode",
    "new_like",
    "unlogged",
    "unset_fake_temporarily",
]
_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")


@contextmanager
def unlogged() -> Iterator[None]:
    """Within the block PyTorch does not print the traceback of an operator that cannot be traced: somebody else
    says what is wrong."""
    before, _LOGGER.disabled = _LOGGER.disabled, True
    try:
        yield
    finally:
        _LOGGER.disabled = before


def new_like(tensor: FakeTensor) -> FakeTensor:
    """Another one of the same shape, strides, format and place, with memory of its own; no mode hears of it."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        form = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(tensor.fake_mode, form, tensor.device)
