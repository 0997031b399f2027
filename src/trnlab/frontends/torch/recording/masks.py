# SPDX-License-Identifier: Apache-2.0
"""Tensors chosen by masks: `x[mask]`, `x[mask] = y`, `masked_select`, `nonzero`.

How many elements a mask chooses hangs on values: the chip counts them, the count is read, and what comes after is
recorded with that size. Data stay on the chip: a running sum numbers the chosen ones, and each one's place is added
up where its number is. What has one value for all places, or needs no size, is not waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.recording.indices import MASKS
from trnlab.frontends.torch.recording.recorder import NOT_RECORDED
from trnlab.frontends.torch.recording.tracing import follower

_aten = torch.ops.aten
_NONZERO = _aten.nonzero.default
_MOST = 1 << 24  # places that running sums number exactly
_Index = list[Tensor | None]
# What `nonzero` found last, with the masks: PyTorch asks for it before `x[mask]`, to know a shape, and does not hand
# it on.
_latest: list[tuple[Tensor, int, list[Tensor]]] = []


def chosen(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The results of an operator that chooses by masks, in operators of known sizes; `NOT_RECORDED` of any other."""
    form = _FORMS.get(op)
    if form is None:
        _latest.clear()
        return NOT_RECORDED
    return form(*args, **kwargs) if _possible(args) else NOT_RECORDED


def _possible(args: Sequence[Any]) -> bool:
    tensors = [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(t, Tensor)]
    return all(t.device.type == "neuron" and 0 < t.numel() < _MOST and not t.is_complex() for t in tensors)


def _numbers(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The mask in one dimension, and of each place how many chosen ones there are up to it."""
    flat = mask.reshape(-1)
    flat = flat if flat.dtype is torch.bool else flat != 0
    return flat, flat.to(torch.int32).cumsum(0, dtype=torch.int32)


def _count(op: Any, mask: Tensor, numbers: Tensor, assumed: int | None = None) -> int:
    """How many are chosen: this waits for what was recorded. assumed: how many it takes where a script is followed
    whose mask nobody knows; all without this."""
    followed = follower()
    if followed is None:
        return int(numbers[-1].item())
    return followed.count(op, mask, numbers, mask.numel() if assumed is None else assumed)


def _places(op: Any, mask: Tensor) -> Tensor:
    """The places that a mask chooses, in order, of all places in one dimension."""
    flat, numbers = _numbers(mask)
    count = _count(op, mask, numbers)
    order = torch.arange(flat.numel(), dtype=torch.int64, device=mask.device)
    target = torch.where(flat, numbers - 1, count)  # all others go behind the last
    return torch.zeros(count + 1, dtype=torch.int64, device=mask.device).index_add(0, target, order)[:count]


def _apart(places: Tensor, shape: Sequence[int]) -> list[Tensor]:
    """The index in each dimension of places in one."""
    found, step = [], prod(shape)
    for size in shape:
        step //= size
        found.append(places // step % size if len(shape) > 1 else places)
    return found


def nonzero(x: Tensor) -> Tensor:
    """As PyTorch's kernel for the host: the indices of a dimension lie one after the other."""
    if not x.dim():
        return torch.zeros((_count(_NONZERO, x, _numbers(x)[1]), 0), dtype=torch.int64, device=x.device)
    known = list(_latest)
    each = _apart(_places(_NONZERO, x), x.shape)
    made = torch.stack(each).t()
    _latest[:] = [*known, (x, x._version, each)]
    return made


def _masks(x: Tensor, indices: _Index) -> bool:
    """Whether masks are among the indices, and lie where they say."""
    dim, found = 0, False
    for index in indices:
        if index is not None and index.dtype in MASKS:
            if not index.dim() or tuple(x.shape[dim : dim + index.dim()]) != tuple(index.shape):
                return False  # the host refuses it as PyTorch does
            found, dim = True, dim + index.dim()
        else:
            dim += 1
    return found


def _numbered(indices: _Index) -> _Index:
    """Indices with the places that they choose instead of masks."""
    found: _Index = []
    for index in indices:
        if index is None or index.dtype not in MASKS:
            found.append(index)
            continue
        known = [each for mask, version, each in _latest if _is_one(mask, index) and version == index._version]
        followed = follower() if known else None
        if followed is not None:
            followed.counted_before(_aten.index.Tensor)
        found += known[0] if known else _apart(_places(_aten.index.Tensor, index), index.shape)
    _latest.clear()
    return found


def _is_one(a: Tensor, b: Tensor) -> bool:
    same = a.untyped_storage()._cdata == b.untyped_storage()._cdata
    lies = [(x.dtype, x.shape, x.stride(), x.storage_offset()) for x in (a, b)]
    return same and lies[0] == lies[1]


def index(x: Tensor, indices: _Index) -> Any:
    """`x[mask]`, among other indices, too."""
    if not _masks(x, indices):
        return NOT_RECORDED
    return _aten.index.Tensor(x, _numbered(indices))


def index_into(x: Tensor, indices: _Index, *, out: Tensor) -> Any:
    """`index` in memory that was made for it."""
    if not _masks(x, indices):
        return NOT_RECORDED
    return _aten.index.Tensor_out(x, _numbered(indices), out=out)


def select(x: Tensor, mask: Tensor) -> Any:
    """`masked_select`: the elements of both spread out to one shape."""
    if mask.dtype is not torch.bool:
        return NOT_RECORDED
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    return x.expand(shape).reshape(-1).index_select(0, _places(_aten.masked_select.default, mask.expand(shape)))


def put(x: Tensor, indices: _Index, values: Tensor, accumulate: bool = False, unsafe: bool = False) -> Any:
    """`x[mask] = y`: of one value nothing has to be counted; else each place takes the value of its number."""
    if values.dtype is not x.dtype or not _masks(x, indices):
        return NOT_RECORDED
    given = [i for i in indices if i is not None]
    if len(given) > 1 or indices[0] is None:
        return _aten.index_put_.default(x, _numbered(indices), values, accumulate)
    (mask,) = given
    mask = mask if mask.dtype is torch.bool else mask != 0
    rest = x.dim() - mask.dim()
    spread = mask.reshape(*mask.shape, *[1] * rest)
    one = values.dim() <= rest or values.shape[0] == 1
    if values.dim() > rest + 1:
        return NOT_RECORDED
    if one:
        taken = values.reshape(values.shape[values.dim() - rest :]) if values.dim() > rest else values
    else:
        numbers = _numbers(mask)[1]
        count = _count(_aten.index_put_.default, mask, numbers, values.shape[0])
        if count != values.shape[0]:
            shape = [count, *x.shape[mask.dim() :]]
            raise RuntimeError(  # as PyTorch says it
                f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result "
                f"of shape {shape}"
            )
        rows = values.index_select(0, (numbers - 1).clamp(min=0))
        taken = rows.reshape(*mask.shape, *values.shape[1:])
    if torch.broadcast_shapes(x.shape, taken.shape) != x.shape:
        return NOT_RECORDED
    return x.copy_(torch.where(spread, x + taken if accumulate else taken, x))


_FORMS: dict[Any, Any] = {
    _NONZERO: nonzero,
    _aten.index.Tensor: index,
    _aten.index.Tensor_out: index_into,
    _aten._unsafe_index.Tensor: index,
    _aten.masked_select.default: select,
    _aten._index_put_impl_.default: put,
    _aten.index_put_.default: put,
}
