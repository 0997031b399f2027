# SPDX-License-Identifier: Apache-2.0
"""Bytes of the tensors that are on the device, for statistics of memory and for the summary of a run.

A tensor counts for as long as its storage lives, in its format on the chip, also while it is recorded and not
computed yet; one that only the recording has left is a temporary of the program to come. Storages over the same
memory count once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from trnlab.frontends.torch.pytorch.tensors import uses_of_storage
from trnlab.hbm import HBM

_FEW = 1024  # storages of which nobody looks for those that are gone
_address_of = Tensor.data_ptr  # as PyTorch has it: nothing is computed for whom it is asked


class Known(NamedTuple):
    """A storage on the device. weak: keeps its identity from being another's."""

    weak: StorageWeakRef
    address: int
    nbytes: int
    kind: torch.dtype


class PendingRecording(NamedTuple):
    """What a recording has."""

    gone: set[int]  # storages that nobody else has
    results: dict[int, tuple[int, torch.dtype]]  # bytes and dtypes of those not computed yet that somebody has


_known: dict[int, Known] = {}
_room = [_FEW]
_without: list[set[int]] = []
recorded: list[Callable[[], PendingRecording]] = []  # by whom operators are recorded


def note(tensor: Tensor) -> None:
    """A tensor came to the device."""
    storage = tensor.untyped_storage()
    keep(storage._cdata, Known(StorageWeakRef(storage), _address_of(tensor), storage.nbytes(), tensor.dtype))


def keep(key: int, known: Known) -> None:
    """The storage `key` lies on the device."""
    _known[key] = known
    if len(_known) > _room[0]:
        _forget()
        _room[0] = max(2 * len(_known), _FEW)


def in_use() -> int:
    """Bytes of all tensors that are on the device."""
    from trnlab.frontends.torch.device.types import is_narrowed

    _forget()
    pending = [each() for each in recorded]
    gone = set().union(*_without, *(each.gone for each in pending))
    there = {each.address: (each.nbytes, each.kind) for key, each in list(_known.items()) if key not in gone}
    halved = {torch.int64, torch.float32} if is_narrowed() else {torch.int64}
    sizes = [*there.values()]
    sizes += [size for each in pending for key, size in each.results.items() if key not in _known]
    return sum(nbytes // 2 if kind in halved else nbytes for nbytes, kind in sizes)


@contextmanager
def without(keys: set[int]) -> Iterator[None]:
    """Within the block these storages do not count."""
    _without.append(keys)
    try:
        yield
    finally:
        _without.remove(keys)


def _forget() -> None:
    for key in [key for key in list(_known) if not uses_of_storage(key)]:
        _known.pop(key, None)


HBM.counted = in_use
