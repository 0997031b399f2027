# SPDX-License-Identifier: Apache-2.0
"""Batches of sequences padded to few lengths, so that few programs are compiled.

plan = buckets.propose(len(sample["input_ids"]) for sample in data)
loader = DataLoader(data, 16, collate_fn=PadToBuckets(plan.sizes, {"labels": -100}, mask="attention_mask"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from trnlab.buckets import BucketPlan
from trnlab.errors import UsageError
from trnlab.frontends.torch.pytorch import pytree


class PadToBuckets:
    """A collate function: samples (or, after `collate`, a batch) padded to the bucket of the longest.

    sizes: lengths to pad to, e.g. `BucketPlan.sizes`. values: what is padded with, by the key (or the place in a
    tuple) of a field; 0 for others. mask: the key under which a mask is added, 1 for what was there and 0 for
    padding, where a sample has none. collate: makes a batch of samples before it is padded, e.g. a DataCollator of
    transformers.

    The length of a sample is the first dimension of its longest field; fields of that length are padded, others (a
    label, an image) are left as they are. Of a batch that `collate` made it is the second dimension. Raises
    UsageError: TRN225 for a sequence longer than all buckets, TRN227 for samples whose sequence fields can't be told.
    """

    def __init__(
        self,
        sizes: Iterable[int],
        values: Mapping[Any, float] | None = None,
        *,
        mask: str | None = None,
        collate: Callable[[Sequence[Any]], Any] | None = None,
    ) -> None:
        self.plan = BucketPlan(tuple(sorted(set(sizes))), {})
        self.values, self.mask, self.collate = dict(values or {}), mask, collate

    def __call__(self, samples: Sequence[Any]) -> Any:
        """The padded batch."""
        if self.collate is not None:
            return self._padded(self.collate(samples), 1)
        lengths = [_length(s, 0) for s in samples]
        size = self.plan.of(max(lengths))
        return default_collate([self._padded(s, 0, size) for s in samples])

    def _padded(self, fields: Any, dim: int, size: int | None = None) -> Any:
        length = _length(fields, dim)
        size = self.plan.of(length) if size is None else size
        named = _fields(fields)
        padded = {k: _to(v, dim, length, size, self.values.get(k, 0)) for k, v in named.items()}
        if isinstance(fields, Mapping):
            if self.mask is not None and self.mask not in padded:
                shape = next(v.shape for v in named.values() if _is_sequence(v, dim, length))[: dim + 1]
                padded[self.mask] = _to(torch.ones(shape, dtype=torch.int64), dim, length, size, 0)
            return padded
        made = [padded[i] for i in range(len(padded))]
        return made[0] if isinstance(fields, Tensor) else tuple(made)


def _fields(sample: Any) -> dict[Any, Any]:
    """The fields of a sample by key or place, lists of numbers as tensors."""
    if isinstance(sample, Tensor):
        return {0: sample}
    items = sample.items() if isinstance(sample, Mapping) else enumerate(sample)
    return {k: torch.as_tensor(v) if isinstance(v, (list, int, float)) else v for k, v in items}


def _is_sequence(field: Any, dim: int, length: int) -> bool:
    return isinstance(field, Tensor) and field.dim() > dim and field.shape[dim] == length


def _length(fields: Any, dim: int) -> int:
    tensors = [t for t in pytree.tree_leaves(_fields(fields)) if isinstance(t, Tensor) and t.dim() > dim]
    if not tensors:
        raise UsageError(
            "a sample has no field that is a sequence",
            code="TRN227",
            got=type(fields).__name__,
            remedy="give tensors or lists, in a tuple or a dictionary",
        )
    return max(int(t.shape[dim]) for t in tensors)


def _to(field: Any, dim: int, length: int, size: int, value: float) -> Any:
    """The field with `size` in place of its `length`; what has another length is left as it is."""
    if not _is_sequence(field, dim, length):
        return field
    after = 2 * (field.dim() - 1 - dim)
    return nn.functional.pad(field, (*[0] * after, 0, size - length), value=value)
