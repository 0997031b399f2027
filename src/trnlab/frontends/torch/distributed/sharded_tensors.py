# SPDX-License-Identifier: Apache-2.0
"""`ShardedTensor` with placements such as `rank:1/neuron:1`: every process calls its only core neuron:0."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

_check = "__post_init__"
_parse = "_parse_and_validate_remote_device"


def install() -> None:
    """Let parts lie on the device of their process by any of its names, once."""
    from trnlab.frontends.torch.pytorch.first_sharding import PARSERS, RemoteDevice, Shard

    checking = getattr(Shard, _check)
    if not hasattr(checking, "__wrapped__"):
        setattr(Shard, _check, _by_kind(checking))
        for module in PARSERS:
            setattr(module, _parse, _own_device(getattr(module, _parse)))
        RemoteDevice.__eq__, RemoteDevice.__hash__ = _same(RemoteDevice.__eq__), _hashed(RemoteDevice.__hash__)


def _own_device(parsed: Callable[..., Any]) -> Callable[..., Any]:
    """Tensors of a place are held against its device by its number: here each process has one, which is 0."""

    @wraps(parsed)
    def own_device(group: Any, place: Any) -> Any:
        rank, device = parsed(group, place)
        return rank, torch.device("neuron", 0) if device.type == "neuron" else device

    return own_device


def _same(equal: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    @wraps(equal)
    def same(place: Any, other: Any) -> bool:
        if not isinstance(other, type(place)) or {place.device().type, other.device().type} != {"neuron"}:
            return equal(place, other)
        return (place.rank(), place.worker_name()) == (other.rank(), other.worker_name())

    return same


def _hashed(hash_of: Callable[[Any], int]) -> Callable[[Any], int]:
    @wraps(hash_of)
    def hashed(place: Any) -> int:
        ours = place.device().type == "neuron"
        return hash((place.rank(), place.worker_name())) if ours else hash_of(place)

    return hashed


def _by_kind(checking: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(checking)
    def checked(shard: Any) -> None:
        said = shard.metadata.placement
        if said is None or {said.device().type, shard.tensor.device.type} != {"neuron"}:
            return checking(shard)
        shard.metadata.placement = None  # the rest is looked at
        try:
            checking(shard)
        finally:
            shard.metadata.placement = said

    return checked
