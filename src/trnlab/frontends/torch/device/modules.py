# SPDX-License-Identifier: Apache-2.0
"""`module.to("neuron")` moves parameters and keeps them the same objects, as on PyTorch's own devices.

Dense ones take the other device's data in their place (`data_attribute`), whoever holds them: optimizers, graphs,
`DistributedDataParallel`. Sparse ones in COO cannot, and PyTorch would put new parameters in the place of the old:
weights that two modules share would part ways, and an optimizer made before the move would train what the model has
left behind. PyTorch has the remedy, swapping the contents of two tensors; it is switched on for just these moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn

Function = Callable[[torch.Tensor], torch.Tensor]


def _crosses(module: nn.Module, function: Function) -> bool:
    """Whether `function` takes sparse parameters to `neuron` or away from it: tried on an empty tensor."""
    first = next((p for p in module.parameters() if p.layout is torch.sparse_coo), None)
    if first is None or torch.__future__.get_swap_module_params_on_conversion():
        return False
    here = first.device.type
    there = function(torch.empty(0, dtype=first.dtype, device=first.device)).device.type
    return here != there and "neuron" in (here, there)


@contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    """What scripts and libraries have written to the parameters stays with them, which a swap takes away."""
    before = [(each, dict(vars(each))) for each in module.parameters()]
    yield
    for each, attributes in before:
        vars(each).update(attributes | vars(each))  # what a wrapper is made of is of the new device by then


def _untold(original: Callable[..., bool]) -> Callable[..., bool]:
    """`_detect_is_causal_mask` of `nn.Transformer` for compiled code on `neuron`.

    Where nobody says whether a mask is the causal one, PyTorch compares its values, for which compiled code would
    have to stop: all of the model would run operator by operator. The mask is applied in either case.
    """

    @wraps(original)
    def detect(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        untold = is_causal is None and mask is not None and mask.device.type == "neuron"
        if untold and torch.compiler.is_dynamo_compiling():
            return False
        return original(mask, is_causal, size)

    return detect


def register() -> None:
    """Extend `nn.Module._apply`, through which all moves and casts of modules go. Called once."""
    transformer: Any = nn.modules.transformer
    transformer._detect_is_causal_mask = _untold(transformer._detect_is_causal_mask)
    original: Any = nn.Module._apply

    def _apply(self: nn.Module, fn: Function, recurse: bool = True) -> nn.Module:
        if not _crosses(self, fn):
            return original(self, fn, recurse)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            with _attributes_kept(self):
                return original(self, fn, recurse)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    nn.Module._apply = _apply  # type: ignore[method-assign]
