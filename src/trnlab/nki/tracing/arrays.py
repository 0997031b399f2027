# SPDX-License-Identifier: Apache-2.0
"""Host arrays at the border: NumPy, PyTorch and JAX in, the same kind out, on the same device, bit by bit.

No framework is imported: one whose arrays arrive has been imported by the caller.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from trnlab.errors import UsageError
from trnlab.lang.formats import Format, format_of, host_dtype

Array = np.ndarray[Any, Any]
# PyTorch's formats that NumPy lacks: the integers that carry their bits, and what ml_dtypes calls them.
_BITS = {
    "bfloat16": ("int16", ml_dtypes.bfloat16),
    "float8_e5m2": ("uint8", ml_dtypes.float8_e5m2),
    "float8_e4m3fn": ("uint8", ml_dtypes.float8_e4m3fn),
}


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

    def writable(self) -> Array:
        """Memory for a kernel that writes to this argument: the data, or a copy where they must not change.

        Raises UsageError for a NumPy array that is read-only; arrays of JAX never change.
        """
        if self.data.flags.writeable:
            return self.data
        if isinstance(self.origin, np.ndarray):
            raise UsageError(
                "a kernel writes to an argument that is read-only",
                code="TRN130",
                got=f"{self.format} {list(self.data.shape)}",
                remedy="pass a copy, or return the result instead",
            )
        return self.data.copy()

    def store(self, written: Array) -> None:
        """What a kernel wrote goes to the caller's array, where that is other memory: strided, on a device, wider."""
        if _is_jax(self.origin):
            return
        if _is_torch(self.origin):
            self.origin.detach().copy_(_to_torch(written, self.format))
        elif not np.shares_memory(written, self.origin):
            self.origin[...] = like(written, self.format, self.origin).astype(self.origin.dtype, copy=False)


def is_array(value: Any) -> bool:
    """Whether a kernel takes it as a tensor (numbers and NumPy scalars are constants)."""
    named = hasattr(type(value), "__jax_array__")  # of the type: some objects, such as torch.ops, answer to any name
    return _is_torch(value) or isinstance(value, np.ndarray) or named or _is_jax(value)


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_jax(value: Any) -> bool:
    return type(value).__module__.split(".")[0] in ("jax", "jaxlib") and hasattr(value, "shape")


def to_host(value: Any) -> HostArray:
    """The array as the chip's memory holds it; 64-bit numbers narrow to 32."""
    array = _from_torch(value) if _is_torch(value) else np.asarray(value)
    fmt = format_of(array.dtype)
    bits = array.dtype == np.bool_ or array.dtype.kind == "V"
    data = np.ascontiguousarray(array).view(fmt.dtype) if bits else array.astype(fmt.dtype, copy=False)
    return HostArray(np.ascontiguousarray(data).reshape(array.shape), fmt, value)


def _from_torch(tensor: Any) -> Array:
    torch = sys.modules["torch"]
    tensor = tensor.detach().cpu().contiguous()
    carrier, kind = _BITS.get(str(tensor.dtype).removeprefix("torch."), (None, None))
    if carrier is None:
        return np.asarray(tensor.numpy())
    return np.asarray(tensor.view(getattr(torch, carrier)).numpy()).view(kind)


def _to_torch(array: Array, fmt: Format) -> Any:
    """A tensor on the CPU over the same memory. PyTorch has one fp8 of four exponent bits: it carries the bits of the
    chip's own, too."""
    torch = sys.modules["torch"]
    name = "float8_e4m3fn" if fmt == "float8_e4m3" else str(fmt)
    if name in _BITS:
        return torch.from_numpy(array.view(_BITS[name][0])).view(getattr(torch, name))
    return torch.from_numpy(array.view(np.bool_) if fmt == "bool" else array)


def like(result: Array, fmt: Format, origin: Any) -> Any:
    """A result as the same kind of array as `origin`, on its device."""
    if _is_torch(origin):
        return _to_torch(result, fmt).to(origin.device)
    result = result.view(np.bool_) if fmt == "bool" else result
    if _is_jax(origin):
        return sys.modules["jax"].device_put(result, origin.device)
    return result.view(host_dtype(str(fmt))) if result.dtype.kind == "u" else result


def origin_of(arrays: Iterable[HostArray]) -> Any:
    """The array whose kind results get: the first of a framework, else the first."""
    origins = [a.origin for a in arrays]
    return next((o for o in origins if not isinstance(o, np.ndarray)), origins[0] if origins else None)
