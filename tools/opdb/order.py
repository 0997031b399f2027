# SPDX-License-Identifier: Apache-2.0
"""Operators that leave open which of several equal elements comes first: their places are judged by what is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from tools.opdb.samples import Sample

# Which result holds places (None: no result does), and which argument is the dimension.
_OPEN: dict[str, tuple[int | None, int]] = {
    "topk": (1, 2),
    "kthvalue": (1, 2),
    "sort": (1, 1),
    "argsort": (0, 1),
    "msort": (None, 9),
}


def by_what_is_there(sample: Sample, results: Sequence[Any]) -> list[Any]:
    """The results, places replaced by the elements there; other operators' as they are."""
    found = list(results)
    open_order = _OPEN.get(sample.op.name)
    if open_order is None or open_order[0] is None:
        return found
    x, dim = _sorted_along(sample, open_order[1])
    places = found[open_order[0]]
    if x.dim() and isinstance(places, Tensor) and places.numel():
        whole = places if places.dim() == x.dim() else places.unsqueeze(dim)
        found[open_order[0]] = x.gather(dim, whole).reshape(places.shape)
    return found


def has_equals(sample: Sample) -> bool:
    """Whether the gradient hangs on an order that the operator leaves open."""
    open_order = _OPEN.get(sample.op.name)
    if open_order is None:
        return False
    x, dim = _sorted_along(sample, open_order[1])
    if not x.dim() or x.shape[dim] < 2:
        return False
    ordered = x.sort(dim).values
    return bool((ordered.diff(dim=dim) == 0).any())


def _sorted_along(sample: Sample, position: int) -> tuple[Tensor, int]:
    args, kwargs = pytree.tree_unflatten(list(sample.leaves), sample.spec)
    dim = kwargs.get("dim", args[position] if position < len(args) else 0 if sample.op.name == "msort" else -1)
    return args[0].detach(), -1 if dim is None else int(dim)
