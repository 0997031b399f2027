# SPDX-License-Identifier: Apache-2.0
"""torch_neuronx.xla_impl.ops: operators by the vendor's names, as PyTorch's."""

from __future__ import annotations

import torch
from torch import Tensor

from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.neuronx import nki_jit

__all__ = ["Argmax", "RmsNorm", "Softmax", "TopK", "nki_jit"]


class RmsNorm:
    """Root mean square normalization."""

    @staticmethod
    def apply(hidden: Tensor, weight: Tensor, eps: float, dim: int = -1) -> Tensor:
        """In float32, along one dimension, then times the weight."""
        wide = hidden.float()
        return (wide * torch.rsqrt(wide.square().mean(dim, keepdim=True) + eps)).to(hidden.dtype) * weight


class Softmax:
    """Softmax."""

    @staticmethod
    def apply(value: Tensor, dim: int = -1) -> Tensor:
        """Along one dimension."""
        return torch.softmax(value, dim)


class TopK:
    """The largest values and where they are."""

    @staticmethod
    def apply(value: Tensor, k: int, dim: int = -1) -> tuple[Tensor, Tensor]:
        """Along one dimension."""
        values, indices = torch.topk(value, k, dim)
        return values, indices


class Argmax:
    """Where the largest value is."""

    @staticmethod
    def apply(value: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """Along one dimension, or of all."""
        return torch.argmax(value, dim, keepdim)


__getattr__ = refusing(
    "torch_neuronx.xla_impl.ops",
    "torch.compile(backend='neuron') compiles PyTorch's own operators",
    ("xla_hlo_call", "xla_call"),
)
