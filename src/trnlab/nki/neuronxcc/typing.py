# SPDX-License-Identifier: Apache-2.0
"""neuronxcc.nki.typing: annotations of tensors."""

from __future__ import annotations

from trnlab.nki.typing import mutable, mutable_tensor, scalar, tensor

__all__ = ["mutable", "mutable_tensor", "scalar", "tensor"]
