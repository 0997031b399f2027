# SPDX-License-Identifier: Apache-2.0
"""The memory of storages as arrays of programs and as tensors of the host."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trnlab.frontends.common.integers import check_fits
from trnlab.frontends.torch.device.dlpack import array_of
from trnlab.frontends.torch.device.host_ops import without_garbage
from trnlab.frontends.torch.device.types import format_of
from trnlab.frontends.torch.recording.recorder import HostNumber, Slot

Array = np.ndarray[Any, Any]


def host_bytes(storage: torch.UntypedStorage, nbytes: int) -> Tensor:
    """All bytes of a storage as a tensor of the host. The storage has to be kept while it is used."""
    if nbytes == 0:  # it has no address
        return torch.empty(0, dtype=torch.uint8)
    raw = (ctypes.c_uint8 * nbytes).from_address(storage.data_ptr())
    return torch.from_numpy(np.ctypeslib.as_array(raw))


class SlotMemory:
    """The memory of one slot for as long as a recording is computed; that of a result which is gone is made anew."""

    def __init__(self, slot: Slot) -> None:
        self.storage = slot.storage()
        self.kind = slot.kind
        if self.storage is None:
            self.flat = without_garbage(torch.empty(slot.nbytes // slot.kind.itemsize, dtype=slot.kind))
        else:
            room = slot.nbytes // slot.kind.itemsize * slot.kind.itemsize
            self.flat = host_bytes(self.storage, room).view(slot.kind)

    def array(self, start: int, shape: tuple[int, ...]) -> Array:
        """A contiguous part as an array: writing to it writes the memory."""
        return array_of(self.flat[start : start + prod(shape)].view(shape))

    def view(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Tensor:
        """A tensor of the host over it."""
        return self.flat.as_strided(shape, strides, offset)


Memories = dict[Slot, SlotMemory]  # of the slots of a recording, while it is computed


def bound(array: Array, kind: torch.dtype) -> tuple[Array, bool]:
    """An array as a program takes it, and whether it is the same memory.

    Raises NumericsError (TRN211) for an integer that does not fit in 32 bits.
    """
    wanted = format_of(kind).numpy
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    if array.dtype == wanted:
        return array, True
    if array.dtype == np.int64:
        check_fits(array, "a tensor")
    return array.astype(wanted), False


def of_number(number: HostNumber) -> Array:
    """A number of the host as an array."""
    return array_of(number.value)


def stored(target: Array, result: Array) -> None:
    """Write what a program made to memory."""
    if target.dtype == np.bool_:
        target = target.view(np.uint8)
    if target is not result:
        target[...] = result.reshape(target.shape)
