# SPDX-License-Identifier: Apache-2.0
"""`ShardedTensor` with placements such as `rank:1/neuron:1`: every process calls its only core neuron:0."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

_check = "__post_init__"


def install() -> None:
    """Let parts lie on the device of their process by any of its names, once."""
    from trnlab.frontends.torch.pytorch.first_sharding import Shard

    checking = getattr(Shard, _check)
    if not hasattr(checking, "__wrapped__"):
        setattr(Shard, _check, _by_kind(checking))


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
