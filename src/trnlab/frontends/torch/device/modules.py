# SPDX-License-Identifier: Apache-2.0
"""`module.to("neuron")` moves parameters and keeps them the same objects, as on PyTorch's own devices.

PyTorch puts new parameters in the place of the old when the device is an outside backend. Weights that two modules
share would part ways, and an optimizer made before the move would train what the model has left behind. PyTorch has
the remedy, swapping the contents of the two tensors; here it is switched on for just these moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

Function = Callable[[torch.Tensor], torch.Tensor]


def _crosses(module: nn.Module, function: Function) -> bool:
    """Whether `function` takes the module's parameters to `neuron` or away from it: tried on an empty tensor."""
    first = next(module.parameters(), None)
    if first is None or torch.__future__.get_swap_module_params_on_conversion():
        return False
    here = first.device.type
    there = function(torch.empty(0, dtype=first.dtype, device=first.device)).device.type
    return here != there and "neuron" in (here, there)


def _let_go(module: nn.Module) -> None:
    """Detach what modules keep that was computed from their parameters, as the older `weight_norm` keeps the weight.

    Its graph holds the parameters, which cannot be swapped while somebody does. On the other device it is of no use
    in any case: it is computed again when it is next needed.
    """
    for each in module.modules():
        for name, value in vars(each).items():
            if isinstance(value, torch.Tensor) and _has_graph(value):
                vars(each)[name] = value.detach()


def _has_graph(value: torch.Tensor) -> bool:
    try:
        return value.grad_fn is not None
    except (
        RuntimeError
    ):  # of a view whose base was written to since, as those of FullyShardedDataParallel's parameters
        return True


@contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    """What scripts and libraries have written to the module's parameters stays with them, which a swap takes away.

    What a subclass is made of is of the new device by then: the tensors around which it wraps.
    """
    before = [(each, dict(vars(each))) for each in module._parameters.values() if each is not None and vars(each)]
    yield
    for each, attributes in before:
        vars(each).update(attributes | vars(each))


@contextmanager
def _uninitialized_too(module: nn.Module) -> Iterator[None]:
    """Within the block parameters of lazy modules, empty so far, are usual ones: others refuse to be swapped."""
    lazy = [(each, type(each)) for each in module.parameters() if is_lazy(each)]
    for each, _ in lazy:
        each.__class__ = nn.Parameter
    try:
        yield
    finally:
        for each, kind in lazy:
            each.__class__ = kind


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
    moving: list[nn.Module] = []

    def _apply(self: nn.Module, fn: Function, recurse: bool = True) -> nn.Module:
        if moving:  # a module within the one that moves
            with _attributes_kept(self):
                return original(self, fn, recurse)
        if not _crosses(self, fn):
            return original(self, fn, recurse)
        _let_go(self)
        torch.__future__.set_swap_module_params_on_conversion(True)
        moving.append(self)
        try:
            with _uninitialized_too(self), _attributes_kept(self):
                return original(self, fn, recurse)
        finally:
            moving.clear()
            torch.__future__.set_swap_module_params_on_conversion(False)

    nn.Module._apply = _apply  # type: ignore[method-assign]
