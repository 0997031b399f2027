# SPDX-License-Identifier: Apache-2.0
"""`torch.compile` without a backend on `neuron` tensors: the chip's compiler serves.

PyTorch's own choice, inductor, generates code for processors and GPUs, and has none for this device. Which of the two
is right is known when a graph arrives and not when `torch.compile` is called: the model may be moved afterwards, and
one compiled function may meet both. So each graph is looked at. Modes and options are inductor's own; where the
chip's compiler serves, PyTorch has checked their names, and they change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.pytorch.tensors import inductor


def on_device(module: torch.fx.GraphModule, examples: Sequence[Any]) -> bool:
    """Whether a graph that Dynamo delivers has a tensor of the device: given, held by its modules, or made in it."""
    return any(isinstance(t, Tensor) and t.device.type == "neuron" for t in _tensors(module, examples))


def _tensors(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Iterator[Any]:
    yield from pytree.tree_leaves(list(examples))
    yield from module.parameters()
    yield from module.buffers()
    for node in module.graph.nodes:
        yield from pytree.tree_leaves(node.meta.get("example_value"))


def _chosen(inductor: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inductor)
    def compile(self: Any, model_: Any, inputs_: Any, *args: Any, **kwargs: Any) -> Any:
        if not on_device(model_, inputs_):
            return inductor(self, model_, inputs_, *args, **kwargs)
        from trnlab.frontends.torch.backend import neuron  # takes a while, and most scripts name it or need it not

        return neuron(model_, inputs_)

    return compile


def register() -> None:
    """Let PyTorch's default choice look at its graphs. Called once."""
    default: Any = inductor
    default.__call__ = _chosen(default.__call__)
