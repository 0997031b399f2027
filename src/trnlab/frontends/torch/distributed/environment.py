# SPDX-License-Identifier: Apache-2.0
"""What of a process a program of several ranks was traced for, beside its arguments: kept by PyTorch, not by scripts.

Operators on DTensors read options of `context_parallel`, handlers that contexts have put in place
(`context_parallel`, `loss_parallel`), and whether shards draw numbers of their own. A captured step takes these as
settings. Under `torch.compile` AOTAutograd runs such operators, where Dynamo sees nothing of what they read: one
guard holds it all.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import Any

from trnlab.frontends.torch.pytorch.places import RINGS

_STAYS = "trnlab.attention_backward.default"  # in place from the first attention on (`sharded_attention.install`)


def job_environment() -> dict[str, Hashable]:
    """Names for people, and plain values; nothing where no process group is there, nor what is not loaded."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return {}
    found: dict[str, Hashable] = {
        "torch.distributed.get_rank()": distributed.get_rank(),
        "torch.distributed.get_world_size()": distributed.get_world_size(),
    }
    rings: Any = sys.modules.get(RINGS)
    if rings is not None:
        found |= {f"context_parallel's {name}": str(value) for name, value in vars(rings._cp_options).items()}
        found["context_parallel's way in"] = str(rings._dispatch_mode)
    tensors: Any = sys.modules.get("torch.distributed.tensor")
    if tensors is not None:
        dispatcher = tensors.DTensor._op_dispatcher
        found |= dict.fromkeys(_handled(tuple(dispatcher._custom_op_handlers)), True)
        found["DTensor's implicit replication"] = bool(dispatcher._allow_implicit_replication)
        tracker = tensors._random._rng_tracker
        found["DTensor's random regions"] = tracker is None or bool(tracker.distribute_region_enabled)
    return found


@lru_cache(maxsize=64)
def _handled(operators: Iterable[Any]) -> tuple[str, ...]:
    """What contexts have put in place beside what DTensor has of its own."""
    return tuple(f"a handler of DTensor for {x}" for x in sorted(map(str, operators)) if x != _STAYS)


def now() -> str:
    """The same as a text, which a guard of Dynamo compares."""
    return repr(job_environment())


def guard() -> None:
    """What Dynamo compiles at the moment is compiled again once that environment has changed.

    To be called while Dynamo waits for its backend: guards are put together afterwards. A function that was compiled
    before there were process groups is guarded too, since `now` says that there are none.
    """
    from trnlab.frontends.torch.pytorch.tracing import equal_again

    equal_again(__name__, now.__name__)
