# SPDX-License-Identifier: Apache-2.0
"""Tensors within nested values: all that are chosen go through a function at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from trnlab.frontends.torch.xla.steps import mark_step

Chosen = Callable[[Any], bool]


def rewritten(value: Any, chosen: Chosen, rewrite: Callable[[Any], Any]) -> Any:
    """The value with `rewrite` of every part that is `chosen`: within mappings, sequences, sets and objects."""
    if chosen(value):
        return rewrite(value)
    if isinstance(value, Mapping):
        parts = {name: rewritten(part, chosen, rewrite) for name, part in value.items()}
        if type(value) is dict:
            return parts
        made = copy.copy(value)
        made.update(parts)  # type: ignore[attr-defined]
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rewritten(part, chosen, rewrite) for part in value))
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(rewritten(part, chosen, rewrite) for part in value)
    if isinstance(value, (str, bytes, torch.Tensor, type)) or not hasattr(value, "__dict__") or callable(value):
        return value
    state = {name: rewritten(part, chosen, rewrite) for name, part in vars(value).items()}
    if any(state[name] is not part for name, part in vars(value).items()):
        value = copy.copy(value)
        vars(value).update(state)
    return value


class ToXlaTensorArena:
    """`convert_fn` is given the list of all parts that `select_fn` chooses, and returns what takes their places."""

    def __init__(self, convert_fn: Callable[[list[Any]], Any], select_fn: Chosen) -> None:
        self._convert, self._chosen = convert_fn, select_fn

    def transform(self, inputs: Any) -> Any:
        """The nested value with those parts replaced."""
        found: list[Any] = []

        def keep(part: Any) -> Any:
            found.append(part)
            return part

        rewritten(inputs, self._chosen, keep)
        if not found:
            return inputs
        converted = iter(self._convert(found))
        return rewritten(inputs, self._chosen, lambda part: next(converted))


def on_device(value: Any) -> bool:
    """Whether it is a tensor on the simulated device."""
    return isinstance(value, torch.Tensor) and value.device.type == "neuron"


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    mark_step()
    return rewritten(data, on_device, lambda tensor: tensor.detach().cpu()) if convert else data


def send_cpu_data_to_device(datas: Any, device: Any, input_sharding: Any = None) -> Any:
    """Nested values with their tensors on the device; of one tensor a list."""
    nested = [datas] if isinstance(datas, torch.Tensor) else datas
    return rewritten(
        nested,
        lambda part: isinstance(part, torch.Tensor) and part.device.type == "cpu",
        lambda part: part.to(device),
    )
