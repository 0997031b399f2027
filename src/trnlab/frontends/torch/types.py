# SPDX-License-Identifier: Apache-2.0
"""PyTorch's dtypes and the chip's."""

from __future__ import annotations

import torch

from trnlab.errors import UnsupportedOpError
from trnlab.graph.ir import TensorType
from trnlab.numerics import dtypes
from trnlab.numerics.dtypes import DType

_FORMATS: dict[torch.dtype, DType] = {
    torch.float32: dtypes.float32,
    torch.float64: dtypes.float32,
    torch.bfloat16: dtypes.bfloat16,
    torch.float16: dtypes.float16,
    torch.float8_e5m2: dtypes.float8_e5m2,
    torch.int64: dtypes.int32,
    torch.int32: dtypes.int32,
    torch.int16: dtypes.int16,
    torch.int8: dtypes.int8,
    torch.uint8: dtypes.uint8,
    torch.bool: dtypes.bool_,
}


_NARROWED = (torch.float64, torch.int64)


def format_of(kind: torch.dtype) -> DType:
    """The chip's format for a PyTorch dtype; 64-bit kinds narrow to 32.

    Raises UnsupportedOpError when there is none.
    """
    if kind not in _FORMATS:
        raise UnsupportedOpError(
            f"the chip has no format for {kind}",
            code="TRN203",
            limit=", ".join(sorted(map(str, _FORMATS))),
            got=kind,
            remedy="use one of these dtypes",
        )
    return _FORMATS[kind]


def kind_of(format: DType) -> torch.dtype:
    """The PyTorch dtype that has this format on the chip, without narrowing."""
    return next(kind for kind, known in _FORMATS.items() if known is format and kind not in _NARROWED)


def type_of(tensor: torch.Tensor) -> TensorType:
    """Shape and format that a tensor has on the chip."""
    return TensorType(tuple(int(n) for n in tensor.shape), format_of(tensor.dtype))
