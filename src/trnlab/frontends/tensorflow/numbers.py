# SPDX-License-Identifier: Apache-2.0
"""The Python numbers of a Keras model that a trace of it holds as constants: a dropout rate, the momentum of running
means, a regularizer's factor, settings of the loss and the optimizer.

TensorFlow fixes them when a step is traced, and goes on with the old ones when they change. Here they are part of
what a program was traced for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import keras

_PLAIN = (bool, int, float, str, type(None))
# What Keras' loops note for themselves.
_NO_NUMBERS = (
    "built",
    "stop_training",
    "stop_evaluating",
    "stop_predicting",
)
_DEPTH = 3  # objects within objects: a layer's wrapper's regularizer


def numbers_of(*owners: Any) -> dict[str, Any]:
    """By a name for people: public attributes of layers, and of what they, the loss and the optimizer hold."""
    found: dict[str, Any] = {}
    for owner in owners:
        if isinstance(owner, keras.layers.Layer):
            taken: Counter[str] = Counter()
            for layer in owner._flatten_layers(include_self=True, recursive=True):
                taken[layer.name] += 1
                again = f" ({taken[layer.name]})" if taken[layer.name] > 1 else ""
                found.update(_numbers(layer, f"{layer.name}{again}", 0))
        elif owner is not None:
            found.update(_numbers(owner, type(owner).__name__, 0))
    return found


def _numbers(owner: Any, label: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in getattr(owner, "__dict__", {}).items():
        if name.startswith("_") or name in _NO_NUMBERS:
            continue
        if isinstance(value, _PLAIN):
            yield f"{label}.{name}", value
        elif isinstance(value, (list, tuple)) and all(isinstance(v, _PLAIN) for v in value):
            yield f"{label}.{name}", tuple(value)
        elif _is_setting(value) and depth < _DEPTH:
            yield from _numbers(value, f"{label}.{name}", depth + 1)


def _is_setting(value: Any) -> bool:
    """Whether an object holds settings: of Keras' objects those that hold no layers or variables."""
    kinds = (
        keras.regularizers.Regularizer,
        keras.constraints.Constraint,
        keras.losses.Loss,
        keras.optimizers.schedules.LearningRateSchedule,
    )
    return isinstance(value, kinds)


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What changed, for people."""
    names = [n for n in (*before, *(n for n in after if n not in before)) if before.get(n) != after.get(n)]
    shown = [f"{n} was {before.get(n)!r}, is {after.get(n)!r}" for n in names[:3]]
    return ", ".join(shown) + (f", and {len(names) - 3} more" if len(names) > 3 else "")
