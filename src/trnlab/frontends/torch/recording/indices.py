# SPDX-License-Identifier: Apache-2.0
"""Indices and masks that the host holds, of tensors on the device: a permutation of a batch, the upper triangle."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trnlab.frontends.torch.device.dlpack import as_neuron

MASKS = (torch.bool, torch.uint8)
Indices = Sequence[Tensor | None]


def on_device(shape: Sequence[int], indices: Indices) -> Indices:
    """As they are now, on the device; a mask of the host as the places that it chooses.

    shape: of what is indexed. All are returned as they are where one fits nothing, or lies outside: the host's kernel
    says that in PyTorch's words.
    """
    if not any(_is_hosts(index) for index in indices):
        return indices
    found: list[Tensor | None] = []
    dim = 0
    for index in indices:
        if index is None or not _is_hosts(index):
            found.append(index)
            dim += index.dim() if index is not None and index.dtype in MASKS else 1
            continue
        places = _places(index, shape[dim:])
        if places is None:
            return indices
        found += [as_neuron(place) for place in places]
        dim += len(places)
    return found


def chooses_nothing(x: Tensor, indices: Indices, values: Tensor) -> bool:
    """Whether these places are none, so that nothing of x is written there; what PyTorch refuses is not told so."""
    given = [index for index in indices if index is not None]
    none = bool(given) and all(not index.numel() and index.dtype not in MASKS for index in given)
    return none and len({index.shape for index in given}) == 1 and values.numel() < 2 and values.dtype == x.dtype


def _is_hosts(index: Tensor | None) -> bool:
    return index is not None and index.is_cpu and index.dim() > 0


def _places(index: Tensor, sizes: Sequence[int]) -> list[Tensor] | None:
    """Places of each dimension that it is for; None where it is for none of this size."""
    if index.dtype in MASKS:
        return list(index.nonzero(as_tuple=True)) if tuple(sizes[: index.dim()]) == tuple(index.shape) else None
    if not sizes or not index.numel() or bool(((index < -sizes[0]) | (index >= sizes[0])).any()):
        return None
    return [index.clone()]
