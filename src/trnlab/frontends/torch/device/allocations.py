# SPDX-License-Identifier: Apache-2.0
"""Bytes of the tensors that are on the device, for statistics of memory and for the summary of a run.

A tensor counts for as long as its storage lives, in its format on the chip, also while it is recorded and not
computed yet; one that only the recording has left is a temporary of the program to come. Storages over the same
memory count once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from trnlab.hbm import HBM

_FEW = 1024  # storages of which nobody looks for those that are gone
_known: dict[int, tuple[StorageWeakRef, int, int, torch.dtype]] = {}  # by identity: address, bytes, dtype
_room = [_FEW]
unseen: list[Callable[[], set[int]]] = []  # say which storages nobody has any more but a recording


def note(tensor: Tensor) -> None:
    """A tensor came to the device."""
    storage = tensor.untyped_storage()
    nbytes = storage.nbytes()
    if nbytes:
        _known[storage._cdata] = StorageWeakRef(storage), storage.data_ptr(), nbytes, tensor.dtype
        if len(_known) > _room[0]:
            _forget()
            _room[0] = max(2 * len(_known), _FEW)


def in_use() -> int:
    """Bytes of all tensors that are on the device."""
    from trnlab.frontends.torch.device.types import is_narrowed

    _forget()
    narrowed, gone = is_narrowed(), {key for each in unseen for key in each()}
    found: dict[int, int] = {}
    for key, (_, address, nbytes, kind) in list(_known.items()):
        if key in gone:
            continue
        halved = kind is torch.int64 or (narrowed and kind is torch.float32)
        found[address] = nbytes // 2 if halved else nbytes
    return sum(found.values())


@contextmanager
def without(keys: set[int]) -> Iterator[None]:
    """Within the block these storages do not count."""

    def mine() -> set[int]:
        return keys

    unseen.append(mine)
    try:
        yield
    finally:
        unseen.remove(mine)


def _forget() -> None:
    for key in [key for key, (weak, *_) in list(_known.items()) if weak.expired()]:
        _known.pop(key, None)


HBM.counted = in_use
