# SPDX-License-Identifier: Apache-2.0
"""Host arrays at the border: NumPy, PyTorch and anything NumPy understands (JAX) in, the same kind out.

No framework is imported: one whose arrays arrive has been imported by the caller.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from trnlab.lang.formats import Format, format_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class HostArray:
    """C-contiguous data in a format of the chip, and the array it came from."""

    data: Array
    format: Format
    origin: Any

    @property
    def key(self) -> tuple[object, ...]:
        """What a recorded kernel depends on."""
        return ("array", self.data.shape, str(self.format))


def is_array(value: Any) -> bool:
    """Whether a kernel takes it as a tensor (numbers and NumPy scalars are constants)."""
    return _is_torch(value) or isinstance(value, np.ndarray) or hasattr(value, "__jax_array__") or _is_jax(value)


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_jax(value: Any) -> bool:
    return type(value).__module__.split(".")[0] in ("jax", "jaxlib") and hasattr(value, "shape")


def to_host(value: Any) -> HostArray:
    """The array as the chip's memory holds it; 64-bit numbers narrow to 32."""
    array = _from_torch(value) if _is_torch(value) else np.asarray(value)
    fmt = format_of(array.dtype)
    data = array.view(np.uint8) if array.dtype == np.bool_ else array.astype(fmt.dtype, copy=False)
    return HostArray(np.ascontiguousarray(data).reshape(array.shape), fmt, value)


def _from_torch(tensor: Any) -> Array:
    torch = sys.modules["torch"]
    tensor = tensor.detach().cpu().contiguous()
    narrow = {"torch.bfloat16": ml_dtypes.bfloat16, "torch.float8_e5m2": ml_dtypes.float8_e5m2,
              "torch.float8_e4m3fn": ml_dtypes.float8_e4m3fn}.get(str(tensor.dtype))  # fmt: skip
    if narrow is None:
        return np.asarray(tensor.numpy())
    bits = tensor.view(torch.int16 if np.dtype(narrow).itemsize == 2 else torch.uint8)
    return np.asarray(bits.numpy()).view(narrow)


def like(result: Array, fmt: Format, origin: Any) -> Any:
    """A result as the same kind of array as `origin`, on its device."""
    if fmt == "bool":
        result = result.astype(np.bool_)
    if not _is_torch(origin):
        return result
    torch = sys.modules["torch"]
    if result.dtype.kind == "V" or str(fmt) in ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3"):
        bits = torch.from_numpy(result.view(np.int16 if result.dtype.itemsize == 2 else np.uint8))
        name = "float8_e4m3fn" if fmt == "float8_e4m3" else str(fmt)
        return bits.view(getattr(torch, name)).to(origin.device)
    return torch.from_numpy(result).to(origin.device)
