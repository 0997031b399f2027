# SPDX-License-Identifier: Apache-2.0
"""Tensors as inputs and outputs of programs: the same memory where formats agree, a converted copy elsewhere."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import increment_version

from trnlab.frontends.common.integers import check_fits
from trnlab.frontends.torch.device.dlpack import as_neuron, from_numpy_alias, memory_of
from trnlab.frontends.torch.device.types import type_of, unnarrowed

Array = np.ndarray[Any, Any]


class ChipArray:
    """The memory of one tensor as an array in its format on the chip.

    A contiguous tensor in a format of the chip is bound without a copy. Others (64-bit integers, transposed tensors,
    float32 where all is bf16) are converted on the way in, and on the way back by `store`. `name` is what an error
    calls the tensor; `exact`: its float32 is not narrowed.
    """

    def __init__(self, tensor: torch.Tensor, name: str = "a tensor", exact: bool = False) -> None:
        with unnarrowed() if exact else nullcontext():
            self.type = type_of(tensor)
        self.tensor, self.name = tensor, name
        self._pointer = tensor.data_ptr()
        # The memory of a conjugate that PyTorch has not computed holds other values.
        self._alias = None if tensor.is_conj() else _floats(tensor)
        self.direct = (
            self._alias is not None
            and bool(self._alias.flags.c_contiguous)
            and self._alias.dtype == self.type.dtype.numpy
        )

    def still(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is the one that was bound, in the same memory."""
        return tensor is self.tensor and tensor.data_ptr() == self._pointer

    def array(self) -> Array:
        """The values now; writing to it writes the tensor when `direct`.

        Raises NumericsError (TRN211) for an integer that does not fit in 32 bits.
        """
        if self._alias is not None and self.direct:
            return self._alias
        alias = _floats(self.tensor.resolve_conj()) if self._alias is None else self._alias
        if alias.dtype == np.int64:
            check_fits(alias, self.name)
        return np.array(alias, self.type.dtype.numpy, order="C")

    def store(self, array: Array) -> None:
        """A program has written to it: write back what it left in a converted copy, and let PyTorch's count of
        versions say so."""
        if self._alias is None:
            self.tensor.detach().copy_(tensor_from(array, self.tensor.dtype, self.tensor.device.type))
        elif not self.direct:
            self._alias[...] = array
        if not self.tensor.is_inference():
            increment_version(self.tensor)


def _floats(tensor: torch.Tensor) -> Array:
    """The memory of a tensor in NumPy's formats: of bools bytes, of complex numbers pairs of floats."""
    alias = memory_of(torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor)
    return alias.view(np.uint8) if alias.dtype == np.bool_ else alias


def tensor_from(array: Array, kind: torch.dtype, device: str = "neuron") -> torch.Tensor:
    """A new tensor of dtype `kind` with the values of `array`, whose memory it takes over when it can."""
    tensor = torch.from_numpy(array.view(np.bool_)) if kind is torch.bool else from_numpy_alias(array, "cpu")
    if kind.is_complex:  # of no elements strides say nothing
        pairs = tensor.float().contiguous()
        tensor = torch.view_as_complex(pairs) if pairs.numel() else torch.empty(pairs.shape[:-1], dtype=kind)
    tensor = tensor if tensor.dtype is kind else tensor.to(kind)
    return as_neuron(tensor) if device == "neuron" else tensor
