# SPDX-License-Identifier: Apache-2.0
"""Where the elements of a sparse tensor lie: rows, columns, and numbers of places."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from trnlab.frontends.torch.sparse import parts as _parts
from trnlab.frontends.torch.sparse.parts import COO, CSR, SparseComponents, original

MOST_PLACES = 2**31  # that numbers of 32 bits tell apart


def rows_and_columns(parts: SparseComponents) -> tuple[Tensor, Tensor]:
    """Rows and columns of each element of a matrix."""
    if parts.layout is COO:
        (indices,) = parts.indices
        return indices[0], indices[1]
    compressed, plain = parts.indices
    lines = written_out(compressed, parts.count)
    return (lines, plain) if parts.layout is CSR else (plain, lines)


def written_out(compressed: Tensor, count: int) -> Tensor:
    """The line of each of `count` elements, from where each line starts: how many starts there were up to it."""
    starts = compressed[1:-1]
    if not count or not starts.numel():
        return torch.zeros(count, dtype=compressed.dtype, device=compressed.device)
    marks = torch.zeros(count + 1, dtype=compressed.dtype, device=compressed.device)
    return marks.index_add(0, starts, torch.ones_like(starts)).cumsum(0)[:count].to(compressed.dtype)


def compressed(lines: Tensor, size: int) -> Tensor:
    """Where each of `size` lines starts, from the lines of the elements in order."""
    counts = torch.zeros(size + 1, dtype=lines.dtype, device=lines.device)
    return counts.index_add(0, lines + 1, torch.ones_like(lines)).cumsum(0).to(lines.dtype)


def numbers(parts: SparseComponents) -> Tensor:
    """The number of each element's place among all places that the indices tell apart, row by row."""
    shape = parts.shape[: parts.split[0]]
    each = tuple(parts.indices[0]) if parts.layout is COO else rows_and_columns(parts)
    found = each[0]
    for size, index in zip(shape[1:], each[1:]):
        found = found * size + index
    return found


def numbered(parts: SparseComponents) -> bool:
    """Whether `numbers` fit in the chip's integers."""
    return prod(parts.shape[: parts.split[0]]) < MOST_PLACES


def same_places(a: SparseComponents, b: SparseComponents) -> bool:
    """Whether two tensors have one structure, as far as memory shows: one that was made of the other has."""
    return (a.layout, a.shape, a.split) == (b.layout, b.shape, b.split) and all(
        _one(original(x), original(y)) for x, y in zip(a.indices, b.indices)
    )


def _one(a: Tensor, b: Tensor) -> bool:
    lies = (x.untyped_storage()._cdata for x in (a, b))
    same = (a.shape, a.stride(), a.storage_offset()) == (b.shape, b.stride(), b.storage_offset())
    return same and len(set(lies)) == 1


def parts_of(tensor: Tensor) -> SparseComponents:
    """A sparse tensor taken apart, whose elements of one place add up to what is there."""
    parts = _parts.parts_of(tensor)
    if not parts.each:
        return parts
    found = numbers(parts)
    counts = torch.zeros(prod(parts.shape[: parts.split[0]]), dtype=parts.values.dtype, device=tensor.device)
    counts = counts.index_add(0, found, torch.ones(found.shape, dtype=counts.dtype, device=tensor.device))
    counts = counts.index_select(0, found).view(-1, *[1] * (parts.values.dim() - 1))
    *others, last = parts.indices
    return replace(parts, indices=(*others, original(last)), values=parts.values / counts, each=False)
