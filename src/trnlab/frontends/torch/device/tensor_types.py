# SPDX-License-Identifier: Apache-2.0
"""`torch.cuda.FloatTensor` and its kin, the types by which scripts made tensors before there were devices."""

from __future__ import annotations

from typing import Any

import torch

_NEURON = torch.device("neuron")
_FORMATS = {
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


class CudaTensorType(type):
    """A class whose calls make tensors of one format on the chip, of sizes or of values; `x.type(it)` casts and
    moves, and its instances are the tensors of that format there."""

    dtype: torch.dtype

    def __call__(cls, *given: Any) -> Any:
        """As `torch.FloatTensor`: of sizes, without values; of a list or an array, its values."""
        if len(given) == 1 and not isinstance(given[0], int | torch.Size):
            return torch.as_tensor(given[0], dtype=cls.dtype).to(_NEURON)
        return torch.empty(*given, dtype=cls.dtype, device=_NEURON)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.is_neuron and value.dtype == cls.dtype


def made() -> dict[str, CudaTensorType]:
    """All of them, by name."""
    return {name: CudaTensorType(name, (), {"dtype": dtype}) for name, dtype in _FORMATS.items()}
