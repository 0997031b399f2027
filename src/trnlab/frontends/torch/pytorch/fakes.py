# SPDX-License-Identifier: Apache-2.0
"""Fake tensors: shapes and types without values, with which PyTorch traces."""

from torch._library.fake_class_registry import FakeScriptObject
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorDeviceMismatchError,
    FakeTensorMode,
    unset_fake_temporarily,
)

__all__ = [
    "DataDependentOutputException", "DynamicOutputShapeException", "FakeScriptObject", "FakeTensor",
    "FakeTensorDeviceMismatchError", "FakeTensorMode", "unset_fake_temporarily",
]  # fmt: skip
