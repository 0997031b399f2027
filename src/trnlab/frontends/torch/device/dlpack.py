# SPDX-License-Identifier: Apache-2.0
"""Tensors of device `neuron` that share memory with tensors of the host.

A DLPack capsule describes memory and names its device. Between making a capsule and reading it back the device may be
rewritten: that relabels the memory without moving a byte, in either direction, in a few microseconds. The new tensor
keeps the old one alive. DLPack's layout is fixed by https://github.com/dmlc/dlpack/blob/main/include/dlpack/dlpack.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from trnlab.errors import UsageError
from trnlab.frontends.torch.device import allocations
from trnlab.frontends.torch.pytorch.tensors import conjugated, from_dlpack, negated, to_dlpack

_KDL_CPU, _KDL_EXT_DEV = 1, 12


class _DLDevice(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


_DEVICE_OFFSET = ctypes.sizeof(ctypes.c_void_p)  # a DLTensor begins with its data pointer; its device follows
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _relabel(tensor: torch.Tensor, device_type: int) -> torch.Tensor:
    """The same memory under another device.

    What keeps it alive is a tensor of our own: one of the caller's may be given other memory (`x.data = y`).
    """
    try:
        capsule = to_dlpack(tensor.detach())
    except BufferError as error:
        raise UsageError(
            f"a tensor of {tensor.dtype} cannot be on the device",
            code="TRN150",
            got=error,
            remedy="keep it on the CPU; the device takes dense tensors of floating point, complex, integer and bool",
        ) from error
    device = _DLDevice.from_address(_capsule_pointer(capsule, b"dltensor") + _DEVICE_OFFSET)
    device.device_type, device.device_id = device_type, 0
    return from_dlpack(capsule)


def as_neuron(tensor: torch.Tensor, counts: bool = True) -> torch.Tensor:
    """The same memory as a tensor of device `neuron:0`; `tensor` is on the CPU. counts: it is in use from now on.

    Raises UsageError for sparse and quantized tensors.
    """
    if tensor.layout != torch.strided:
        raise no_sparse(tensor.layout)
    found = _seen_as(tensor, _KDL_EXT_DEV)
    if counts:
        allocations.note(found)
    return found


def as_host(tensor: torch.Tensor, reads: bool = False) -> torch.Tensor:
    """The same memory as a tensor of the CPU; `tensor` is on `neuron` (or on the CPU already).

    What was recorded and not computed yet is computed first, if it writes the memory, or reads it; reads: the caller
    will only read, now.
    """
    if tensor.device.type != "neuron":
        return tensor
    before_host(tensor, reads)
    return _seen_as(tensor, _KDL_CPU)


def _nothing(tensor: torch.Tensor, reads: bool) -> None:
    """Nothing is recorded."""


before_host: Callable[[torch.Tensor, bool], None] = _nothing  # hears of all who want the memory of a tensor


def _seen_as(tensor: torch.Tensor, device_type: int) -> torch.Tensor:
    """`_relabel`, for tensors that stand for the conjugate or the negative of what is in memory, or for zeros without
    any, too."""
    if tensor._is_zerotensor():
        tensor = tensor.clone()
    if tensor.is_conj():
        return conjugated(_seen_as(conjugated(tensor), device_type))
    if tensor.is_neg():
        return negated(_relabel(negated(tensor), device_type))
    return _relabel(tensor, device_type)


def no_sparse(layout: object) -> UsageError:
    """The refusal of tensors that are not dense."""
    return UsageError(
        "the device has dense tensors, and sparse ones in COO, CSR and CSC",
        code="TRN150",
        got=layout,
        remedy="keep nested and other sparse tensors on the CPU, or use a dense one: x.to_dense(), torch.index_add, "
        "nn.Embedding(sparse=False)",
    )


_NOT_NUMPY = {
    torch.bfloat16: (torch.int16, "bfloat16"),
    torch.float8_e5m2: (torch.uint8, "float8_e5m2"),
    torch.float8_e4m3fn: (torch.uint8, "float8_e4m3fn"),
}


def to_numpy_alias(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A NumPy array over the tensor's own memory: writing to one is writing to the other. No copy is made.

    Formats that NumPy lacks come as those of `ml_dtypes`. The array has the tensor's shape and strides.
    """
    array = memory_of(tensor)
    if tensor.device.type == "neuron":
        _note_shared(tensor)
    return array


def memory_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """`to_numpy_alias` for those who read or write the array at once."""
    return array_of(as_host(tensor.detach()))


_shared: dict[int, StorageWeakRef] = {}  # storages that the host may read and write at any time, by their addresses


def _note_shared(tensor: torch.Tensor) -> None:
    for key in [key for key, weak in _shared.items() if weak.expired()]:
        del _shared[key]
    storage = tensor.untyped_storage()
    _shared[storage._cdata] = StorageWeakRef(storage)


def is_shared(storage: torch.UntypedStorage) -> bool:
    """Whether the host has an array over this memory: what is to be computed of it is computed at once."""
    return bool(_shared) and storage._cdata in _shared


def array_of(host: torch.Tensor) -> np.ndarray[Any, Any]:
    """`to_numpy_alias` of a tensor of the host."""
    if host.dtype in _NOT_NUMPY:
        import ml_dtypes

        bits, name = _NOT_NUMPY[host.dtype]
        return host.view(bits).numpy().view(getattr(ml_dtypes, name))
    return host.numpy()


def from_numpy_alias(array: np.ndarray[Any, Any], device: str = "neuron") -> torch.Tensor:
    """A tensor over the array's own memory; the inverse of `to_numpy_alias`."""
    kinds = {name: (kind, bits) for kind, (bits, name) in _NOT_NUMPY.items()}
    if array.dtype.name in kinds:
        kind, bits = kinds[array.dtype.name]
        host = torch.from_numpy(array.view(np.int16 if bits is torch.int16 else np.uint8)).view(kind)
    else:
        host = torch.from_numpy(array)
    if device != "neuron":
        return host
    tensor = as_neuron(host)
    _note_shared(tensor)
    return tensor
