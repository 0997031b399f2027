# SPDX-License-Identifier: Apache-2.0
"""What gradients are while they travel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class NoneCompressor:
    """As they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """What travels, and what `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """What came, in its first form."""
        return tensor


class FP16Compressor(NoneCompressor):
    """In 16 bits."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """What travels, and what `decompress` needs."""
        return (tensor.to(torch.float16) if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """What came, in its first form."""
        return tensor.to(ctx)


class Compression:
    """Those that there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
