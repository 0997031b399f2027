# SPDX-License-Identifier: Apache-2.0
"""PyTorch's dtypes and the chip's.

The chip has no 64-bit formats. int64 lies on it as int32 and is watched (`graph.overflow`); float64 is refused,
because half of its digits would be lost without a word.
"""

from __future__ import annotations

import torch

from trnlab.errors import UnsupportedOpError
from trnlab.graph.ir import TensorType
from trnlab.numerics import dtypes
from trnlab.numerics.dtypes import DType

_FORMATS: dict[torch.dtype, DType] = {
    torch.float32: dtypes.float32,
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
_WIDE = (torch.int64,)
_WAYS_OUT = {
    torch.float64: "compute in float32 (x.float(), dtype=torch.float32), or use the host, in eager mode",
    torch.complex64: "keep real and imaginary parts apart (torch.view_as_real), or use the host, in eager mode",
}


def format_of(kind: torch.dtype) -> DType:
    """The chip's format for a PyTorch dtype; int64 lies in 32 bits.

    Raises UnsupportedOpError when there is none: TRN212 for float64, TRN203 for all others.
    """
    if kind not in _FORMATS:
        name = str(kind).removeprefix("torch.")
        raise UnsupportedOpError(
            f"the chip has no format for {name}",
            code="TRN212" if kind is torch.float64 else "TRN203",
            limit=", ".join(sorted(str(known).removeprefix("torch.") for known in _FORMATS)),
            got=name,
            remedy=_WAYS_OUT.get(kind, "convert it to one of these before the step"),
        )
    return _FORMATS[kind]


def is_wide(kind: torch.dtype) -> bool:
    """Whether numbers of this dtype have more bits than the format that they lie in on the chip."""
    return kind in _WIDE


def kind_of(format: DType) -> torch.dtype:
    """The PyTorch dtype that has this format on the chip, without narrowing."""
    return next(kind for kind, known in _FORMATS.items() if known is format and kind not in _WIDE)


def type_of(tensor: torch.Tensor) -> TensorType:
    """Shape and format that a tensor has on the chip."""
    return TensorType(tuple(int(n) for n in tensor.shape), format_of(tensor.dtype))
