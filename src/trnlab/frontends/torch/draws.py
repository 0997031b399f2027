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
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_META, _KEY = "custom", "trnlab_draw"  # FX copies the dictionary of this name from node to node


class NoteDraws(TorchDispatchMode):
    """While active, each random operator that is traced carries the generator's state, and moves the generator on."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return function(*args, **(kwargs or {}))
        with _noted(_state()):
            result = function(*args, **(kwargs or {}))
        with _disable_current_modes():
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


def draw_of(node: fx.Node) -> str | None:
    """The state that an operator drew from, None where nothing was noted."""
    return (node.meta.get(_META) or {}).get(_KEY)


@contextmanager
def _noted(state: str) -> Iterator[None]:
    meta = fx_traceback.current_meta
    before = meta.get(_META)
    meta[_META] = {**(before or {}), _KEY: state}
    try:
        yield
    finally:
        if before is None:
            meta.pop(_META)
        else:
            meta[_META] = before


def _state() -> str:
    with _disable_current_modes():
        return hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
