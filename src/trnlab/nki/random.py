# SPDX-License-Identifier: Apache-2.0
"""Random numbers of nki.isa: the engines' generators, which a kernel seeds or leaves to a stream for each use."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from trnlab.isa.base import Engine
from trnlab.isa.random.random_streams import state_words
from trnlab.lang.recorder import current
from trnlab.lang.storage import MemorySpace
from trnlab.lang.tensor import Tensor
from trnlab.nki.enums import engine
from trnlab.nki.handles import NkiInstruction, issue, number

_VECTOR = engine.vector


def rng(dst: Tensor, engine: engine = engine.vector, name: str | None = None) -> NkiInstruction:
    """Random bits."""
    return issue("rng", name, on=engine, dst=dst, **_drawing(engine, dst))


def dropout(dst: Tensor, data: Tensor, prob: Any, name: str | None = None) -> NkiInstruction:
    """Zero each element with probability `prob`."""
    return issue("dropout", name, dst=dst, data=data, prob=number(prob), **_drawing(_VECTOR, dst))


def _drawing(on: engine, dst: Tensor) -> dict[str, Any]:
    """Where random bits come from: the generator once the kernel has seeded it, before that a stream per use."""
    state = _STATES.get(current(), {}).get(on)
    if state is not None:
        return {"state": state[0 : dst.shape[0]]}
    draws = current().once("draws", itertools.count)
    return {"seed": next(draws)}


_STATES: weakref.WeakKeyDictionary[Any, dict[engine, Tensor]] = weakref.WeakKeyDictionary()


def _state(on: engine, words: int) -> Tensor:
    """The tile that holds an engine's generator."""
    states = _STATES.setdefault(current(), {})
    if on not in states:
        states[on] = current().tensor((128, words), "uint32", MemorySpace.sbuf, name=f"{on.name} generator")
    return states[on]


def set_rng_seed(src_seeds: Tensor, name: str | None = None) -> NkiInstruction:
    """Seed VectorE's generator."""
    words = state_words(Engine.VECTOR, current().chip)
    return issue("set_rng_seed", name, state=_state(_VECTOR, words), src_seeds=src_seeds)


def rand_set_state(src_seeds: Tensor, engine: engine = engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """Load the generator's state."""
    rows, words = src_seeds.shape
    return issue("rand_set_state", name, on=engine, state=_state(engine, words)[0:rows], src_seeds=src_seeds)


def rand_get_state(dst: Tensor, engine: engine = engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """Save the generator's state."""
    rows, words = dst.shape
    return issue("rand_get_state", name, on=engine, dst=dst, state=_state(engine, words)[0:rows])


def rand2(dst: Tensor, min: Any, max: Any, name: str | None = None) -> NkiInstruction:
    """Uniform numbers in [min, max]."""
    return issue("rand2", name, dst=dst, min=number(min), max=number(max), **_drawing(_VECTOR, dst))
