# SPDX-License-Identifier: Apache-2.0
"""Which random operators of a traced step draw the same numbers: those that start from one state of the generator.

A compiled program has a seed, and its random operators ranges of numbers. In eager PyTorch what an operator draws is
decided by the generator's state, and code counts on that: `torch.utils.checkpoint` runs a function again in the
backward pass from the state of the first time, and must see the same dropout masks. So while a step is traced the
generator moves on at each random operator, as it would, and the state at which an operator started is noted at its FX
node. The generator is put back afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.fx import traceback as fx_traceback

from trnlab.frontends.torch.pytorch.dispatcher import TorchDispatchMode, modes_off
from trnlab.guards.watch import unwatched

# FX copies the dictionary of this name from node to node.
_META, _KEY, _SHARD = (
    "custom",
    "trnlab_draw",
    "trnlab_shard",
)
_APART = 0x9E3779B1  # odd, so that no two shards have one seed
_PYTORCHS = ("aten", "prims", "_c10d_functional")


class NoteDraws(TorchDispatchMode):
    """While active, each random operator that is traced carries the generator's state, and moves the generator on."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in function.tags:
            if function.namespace not in _PYTORCHS or not all(t.__module__.startswith("torch.") for t in types):
                return function(*args, **(kwargs or {}))
            with unwatched():  # shapes of PyTorch's own operators, which is most of what runs in a capture
                return function(*args, **(kwargs or {}))
        with _noted(_state()):
            result = function(*args, **(kwargs or {}))
        with modes_off():
            torch.rand(())
        return result


@contextmanager
def generator_kept() -> Iterator[None]:
    """Within the block PyTorch's generator may move on; afterwards it is as before."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def as_shard(place: int, layout: str) -> Iterator[None]:
    """Within the block operators draw the numbers of one shard of a tensor. place: which one; layout: of the tensor,
    the same text on all ranks."""
    with _noted((place, layout), _SHARD):
        yield


def shard_of(node: fx.Node) -> tuple[int, str] | None:
    """The shard that an operator draws for, and the layout; None for a tensor that is whole."""
    return (node.meta.get(_META) or {}).get(_SHARD)


def draw_of(node: fx.Node) -> str | None:
    """The state that an operator drew from, None where nothing was noted."""
    return (node.meta.get(_META) or {}).get(_KEY)


@contextmanager
def _noted(value: Any, key: str = _KEY) -> Iterator[None]:
    meta = fx_traceback.current_meta
    before = meta.get(_META)
    meta[_META] = {**(before or {}), key: value}
    try:
        yield
    finally:
        if before is None:
            meta.pop(_META)
        else:
            meta[_META] = before


def _state() -> str:
    with modes_off():
        return hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()


def new_seed(shard: int = 0) -> torch.Tensor:
    """A seed of 64 bits for one run of a program, from PyTorch's generator: `torch.manual_seed` decides.

    shard: which one of a tensor draws from it; ranks with equal generators then have different seeds.
    """
    drawn = torch.randint(-(2**31), 2**31, (2,), dtype=torch.int64)
    drawn[0] += shard * _APART
    return drawn.to(torch.int32)
