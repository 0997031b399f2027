# SPDX-License-Identifier: Apache-2.0
"""The number formats of the chip, by name and by the small code that simulators switch on.

Sources: Neuron data types, about-neuron/arch/neuron-features/data-types.rst, and the table of formats in
nki/api/nki.api.shared.rst, of aws-neuron/aws-neuron-sdk; OCP Microscaling Formats (MX) 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """One number format. `code` indexes the load and store tables of the simulators; `itemsize` is in bytes.

    lane: of a packed format, the format of each of the four values that one word holds, the first in its lowest bits.
    Nothing computes on packed words but the instructions of the MX formats: elsewhere they move whole, as the
    unsigned integers that contain them.
    """

    name: str
    code: int
    itemsize: int
    kind: str  # "f" float, "i" signed integer, "u" unsigned integer or packed word, "b" truth value
    numpy: np.dtype[Any]
    lane: str = ""

    @property
    def is_float(self) -> bool:
        """Whether it is a floating point format."""
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """Whether it holds whole numbers, truth values or packed words: bits that are read as they are."""
        return self.kind in "iub"

    @property
    def is_packed(self) -> bool:
        """Whether a word of it holds several values."""
        return bool(self.lane)

    @property
    def limits(self) -> tuple[int | float, int | float]:
        """The smallest and the largest value: of a float format the infinities."""
        if self.is_float:
            return float("-inf"), float("inf")
        if self.kind == "b":
            return 0, 1
        info = np.iinfo(self.numpy)
        return int(info.min), int(info.max)

    def __hash__(self) -> int:  # of all fields it takes ten times as long, and tables are looked up by formats
        return self.code

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)


float32 = DType("float32", 0, 4, "f", np.dtype(np.float32))
bfloat16 = DType("bfloat16", 1, 2, "f", np.dtype(ml_dtypes.bfloat16))
float16 = DType("float16", 2, 2, "f", np.dtype(np.float16))
float8_e4m3 = DType("float8_e4m3", 3, 1, "f", np.dtype(ml_dtypes.float8_e4m3))
float8_e5m2 = DType("float8_e5m2", 4, 1, "f", np.dtype(ml_dtypes.float8_e5m2))
int32 = DType("int32", 5, 4, "i", np.dtype(np.int32))
uint32 = DType("uint32", 6, 4, "u", np.dtype(np.uint32))
int16 = DType("int16", 7, 2, "i", np.dtype(np.int16))
uint16 = DType("uint16", 8, 2, "u", np.dtype(np.uint16))
int8 = DType("int8", 9, 1, "i", np.dtype(np.int8))
uint8 = DType("uint8", 10, 1, "u", np.dtype(np.uint8))
bool_ = DType("bool", 11, 1, "b", np.dtype(np.uint8))
tfloat32 = DType("tfloat32", 12, 4, "f", np.dtype(np.float32))
float8_e4m3fn = DType("float8_e4m3fn", 13, 1, "f", np.dtype(ml_dtypes.float8_e4m3fn))
float8_e8m0fnu = DType("float8_e8m0fnu", 14, 1, "f", np.dtype(ml_dtypes.float8_e8m0fnu))
float8_e5m2_x4 = DType("float8_e5m2_x4", 15, 4, "u", np.dtype(np.uint32), "float8_e5m2")
float8_e4m3fn_x4 = DType("float8_e4m3fn_x4", 16, 4, "u", np.dtype(np.uint32), "float8_e4m3fn")
float4_e2m1fn_x4 = DType("float4_e2m1fn_x4", 17, 2, "u", np.dtype(np.uint16), "float4_e2m1fn")

# One value per element.
ALL = (
    float32,
    bfloat16,
    float16,
    float8_e4m3,
    float8_e5m2,
    int32,
    uint32,
    int16,
    uint16,
    int8,
    uint8,
    bool_,
    tfloat32,
    float8_e4m3fn,
    float8_e8m0fnu,
)
PACKED = (float8_e5m2_x4, float8_e4m3fn_x4, float4_e2m1fn_x4)
_BY_NAME = {d.name: d for d in (*ALL, *PACKED)}
BY_CODE = {d.code: d for d in (*ALL, *PACKED)}


def dtype(name: str | DType) -> DType:
    """The format called `name`. Raises KeyError for a name that is not a format of the chip."""
    return name if isinstance(name, DType) else _BY_NAME[name]


def from_numpy(kind: Any) -> DType:
    """The chip's format for a NumPy dtype; 64-bit kinds narrow to 32, as the host copy to the device does."""
    np_dtype = np.dtype(kind)
    narrowed = {"int64": "int32", "uint64": "uint32", "float64": "float32", "bool": "bool"}
    return _BY_NAME[narrowed.get(np_dtype.name, np_dtype.name)]
