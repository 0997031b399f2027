# SPDX-License-Identifier: Apache-2.0
"""torch_neuronx.trace: a model compiled for the shapes of its example inputs, called on tensors of the host."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from trnlab.errors import UsageError
from trnlab.frontends.torch.pytorch import pytree

__all__ = ["DataParallel", "trace"]


class _Traced(torch.nn.Module):
    """Takes tensors of the host and returns tensors of the host; its weights are on the device."""

    def __init__(self, func: Any, example_inputs: Any, freezing: bool) -> None:
        super().__init__()
        self._example = [_form(leaf) for leaf in pytree.tree_leaves(_positional(example_inputs))]
        self._function = copy.deepcopy(func).to("neuron") if isinstance(func, torch.nn.Module) else func
        self._compiled = torch.compile(
            self._function, backend="neuron", dynamic=False, options={"freezing": freezing}
        )
        self.dynamic = False

    def forward(self, *inputs: Any) -> Any:
        """The model of inputs that have the shapes it was traced with.

        Raises UsageError (TRN299) for others.
        """
        got = [_form(leaf) for leaf in pytree.tree_leaves(inputs)]
        if not self.dynamic and got != self._example:
            raise UsageError(
                "a traced model takes inputs of the shapes and formats it was traced with",
                code="TRN299",
                limit=self._example,
                got=got,
                remedy="pad the inputs, trace once for each shape, or use torch.compile",
            )
        with torch.no_grad():
            return pytree.tree_map(_to("cpu"), self._compiled(*pytree.tree_map(_to("neuron"), inputs)))


def _positional(example_inputs: Any) -> tuple[Any, ...]:
    return tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)


def _form(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf


def _to(device: str) -> Any:
    return lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf


def trace(func: Any, example_inputs: Any, *_: Any, inline_weights_to_neff: bool = True, **__: Any) -> _Traced:
    """A model, or a function of tensors, for such inputs. It is compiled now; options of the compiler change nothing.

    inline_weights_to_neff: weights are brought into the form that each run reads once, see `compiler.prepared`.

    A copy of the model is kept: what is done to the model afterwards does not reach it.
    """
    if isinstance(func, torch.nn.Module):
        func.eval()
    traced = _Traced(func, example_inputs, inline_weights_to_neff)
    traced(*_positional(example_inputs))
    return traced


class DataParallel(torch.nn.Module):
    """A traced model over cores, of which a process has one."""

    def __init__(self, model: torch.nn.Module, device_ids: Any = None, dim: int = 0) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> Any:
        """The model's result."""
        return self.model(*inputs)


def dynamic_batch(model: _Traced) -> _Traced:
    """The model for any shape of its inputs, each of which is compiled once."""
    model.dynamic = True
    return model


def lazy_load(model: Any, *_: Any, **__: Any) -> Any:
    """The model: it is in memory."""
    return model


async_load = lazy_load


def move_trace_to_device(model: Any, device_id: int = 0) -> None:
    """Nothing: it is there."""
