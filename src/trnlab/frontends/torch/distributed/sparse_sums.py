# SPDX-License-Identifier: Apache-2.0
"""All-reduce of sparse tensors: places and values are gathered, and added up where places are the same.

So gloo does it, and Horovod. What the fabric moves are dense tensors, in three all-gathers: how many elements each
rank has, where they are, and what they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trnlab.errors import CollectiveError
from trnlab.frontends.torch.distributed import sites
from trnlab.frontends.torch.distributed.reductions import ReduceOp

_SUMS = ("sum", "avg")


def all_reduce(group: Any, tensor: Tensor, reduction: ReduceOp) -> None:
    """Every rank ends with the sum or mean in its tensor, coalesced. Waits for it.

    Raises CollectiveError: TRN275 for other reductions and layouts, and where a rank is followed without the others,
    who alone know how many elements they have; TRN277 where shapes differ.
    """
    if tensor.layout != torch.sparse_coo or reduction.spoken not in _SUMS or not group.transport.reads:
        raise CollectiveError(
            "sparse tensors are reduced by sums and means of the layout COO",
            code="TRN275",
            where=sites.site(),
            got=f"{reduction.spoken} of {tensor.layout}",
            remedy="x.to_dense() before, or x.to_sparse_coo()",
        )
    mine = tensor.detach().coalesce()
    counts = _counts(group, mine)
    places = _gathered(group, mine.indices().t().contiguous(), counts)
    values = _gathered(group, mine.values(), counts)
    if reduction.spoken == "avg":
        values = values / len(counts)
    total = torch.sparse_coo_tensor(places.t(), values.to(tensor.dtype), tensor.shape, check_invariants=False)
    with torch.no_grad():  # a detached one would have memory of its own from here on
        tensor.copy_(total.coalesce())


def _counts(group: Any, mine: Tensor) -> list[int]:
    """How many elements each position has."""
    said = torch.tensor([mine.indices().shape[1], *mine.shape])
    all_said = [torch.empty_like(said) for _ in range(group.size())]
    group.allgather([all_said], [said]).wait()
    shapes = [each[1:].tolist() for each in all_said]
    if any(shape != shapes[0] for shape in shapes):
        raise CollectiveError(
            "tensors of this all_reduce do not fit each other",
            code="TRN277",
            where=sites.site(),
            limit="one shape on all ranks",
            got=shapes,
            remedy="give it tensors of one shape",
        )
    return [int(each[0]) for each in all_said]


def _gathered(group: Any, rows: Tensor, counts: list[int]) -> Tensor:
    """The rows of all positions, one after the other."""
    parts = [rows.new_empty((count, *rows.shape[1:])) for count in counts]
    if any(part.numel() for part in parts):
        group.allgather([parts], [rows]).wait()
    return torch.cat(parts)
