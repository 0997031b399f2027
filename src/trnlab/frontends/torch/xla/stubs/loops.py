# SPDX-License-Identifier: Apache-2.0
"""torch_xla.experimental.scan and .scan_layers: loops over layers, as loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.xla.names import refusing

__all__ = ["scan", "scan_layers"]


def scan(fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, **_: Any) -> tuple[Any, Any]:
    """fn over the first dimension of `xs`, which carries a value along; returns that and what came out, stacked."""
    results = []
    for index in range(len(pytree.tree_leaves(xs)[0])):
        init, result = fn(init, pytree.tree_map(lambda leaf, at=index: leaf[at], xs))
        results.append(result)
    return init, pytree.tree_map(lambda *parts: torch.stack(parts), *results)


def scan_layers(layers: Iterable[torch.nn.Module], input_data: Any, **_: Any) -> Any:
    """One layer after another."""
    for layer in layers:
        input_data = layer(input_data)
    return input_data


__getattr__ = refusing("torch_xla.experimental.scan", "there are scan and scan_layers")
