# SPDX-License-Identifier: Apache-2.0
"""Python's arithmetic of an optimizer on tensors of one number, which stand for its learning rate and step count.

An optimizer computes `lr * math.sqrt(1 - beta**step)` or `min(lr, 1 / step)` on Python's numbers. A program that is
to serve every step needs both as inputs, so that tensors go through the same code. Where Python wants a number of its
own (`float(x)`, `if step > 5`) they cannot.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Functions of Python with the same meaning on tensors.
_OF_MATH: dict[str, Callable[..., Tensor]] = {
    "sqrt": torch.sqrt,
    "pow": torch.pow,
    "exp": torch.exp,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "tanh": torch.tanh,
    "cos": torch.cos,
    "sin": torch.sin,
    "fabs": torch.abs,
}
# Comparisons with zero: of a number that is given, another sign is another setting of the program.
_OF_ZERO: dict[str, Callable[[float], bool]] = {
    "ne": lambda x: x != 0,
    "eq": lambda x: x == 0,
    "gt": lambda x: x > 0,
    "ge": lambda x: x >= 0,
    "lt": lambda x: x < 0,
    "le": lambda x: x <= 0,
    "bool": lambda x: x != 0,
}
_OF_BUILTINS: dict[str, Callable[..., Tensor]] = {"max": torch.maximum, "min": torch.minimum}


class _TensorFactors(TorchFunctionMode):
    """Within, `alpha=` and `value=` may be tensors, and `.item()` of a tensor is that tensor.

    Optimizers pass the learning rate there, for which PyTorch wants a Python number; a step that is to serve every
    learning rate needs it as an input. Some compute with the step count as a number. known: see `tensors_as_numbers`.
    """

    def __init__(self, known: Mapping[int, float]) -> None:
        super().__init__()
        self._known = known

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.item:
            return args[0]
        asked = _OF_ZERO.get(function.__name__.strip("_"))
        if asked is not None and id(args[0]) in self._known and args[1:] in ((), (0,)):
            return asked(self._known[id(args[0])])
        factor = kwargs.get("alpha", kwargs.get("value"))
        if not isinstance(factor, Tensor):
            return function(*args, **kwargs)
        x, y, *z = args
        kind = function.__name__.rstrip("_")
        term = {"addcmul": lambda: y * z[0], "addcdiv": lambda: y / z[0]}.get(kind, lambda: y)() * factor
        changed = x - term if kind == "sub" else x + term
        return x.copy_(changed) if function.__name__.endswith("_") else changed


@contextmanager
def tensors_as_numbers(known: Mapping[int, float] | None = None) -> Iterator[None]:
    """Within the block `min`, `max`, functions of `math` and factors of tensors take tensors of one number.

    known: by identity, what tensors stand for of which the optimizer may ask for the sign.
    """
    of_math = {name: _on_either(getattr(math, name), there) for name, there in _OF_MATH.items()}
    of_builtins = {name: _extreme(getattr(builtins, name), there) for name, there in _OF_BUILTINS.items()}
    with _replaced(math, of_math), _replaced(builtins, of_builtins), _TensorFactors(known or {}):
        yield


@contextmanager
def _replaced(module: Any, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    kept = {name: getattr(module, name) for name in functions}
    vars(module).update(functions)
    try:
        yield
    finally:
        vars(module).update(kept)


def _on_either(python: Callable[..., Any], on_tensors: Callable[..., Tensor]) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        if not any(isinstance(x, Tensor) for x in args):
            return python(*args)
        return on_tensors(*_promoted(args))

    return function


def _extreme(python: Callable[..., Any], on_tensors: Callable[..., Tensor]) -> Callable[..., Any]:
    def function(*values: Any, **options: Any) -> Any:
        if options or len(values) < 2 or not any(isinstance(x, Tensor) for x in values):
            return python(*values, **options)
        return reduce(on_tensors, _promoted(values))

    return function


def _promoted(values: tuple[Any, ...]) -> list[Tensor]:
    """All of them as tensors, where the first tensor is."""
    like = next(x for x in values if isinstance(x, Tensor))
    return [x if isinstance(x, Tensor) else torch.full_like(like, x) for x in values]
