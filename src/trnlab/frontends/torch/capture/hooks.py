# SPDX-License-Identifier: Apache-2.0
"""Hooks of optimizers and parameters: which run inside of a captured step, which after it, which cannot run."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from trnlab.errors import Location, UnsupportedOpError, UsageError
from trnlab.frontends.torch.pytorch.dispatcher import functions_not_overridden
from trnlab.frontends.torch.pytorch.tensors import hooks_after, hooks_before

_TABLES = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raises UnsupportedOpError for an optimizer whose step is not one update of parameters by their gradients."""
    own = vars(optimizer).get("step")
    if own is not None and not hasattr(own, "_wrapped_by_lr_sched"):
        raise _refused(
            optimizer,
            "has a step of its own in the place of its class's",
            inspect.unwrap(own),
            "put what it does into a subclass of the optimizer, or into hooks",
        )
    step = inspect.unwrap(type(optimizer).step)
    parameters = list(inspect.signature(step).parameters.values())[1:]
    if any(p.default is inspect.Parameter.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters):
        raise _refused(
            optimizer,
            "computes the loss several times in one step (it wants a closure)",
            step,
            "take an optimizer that uses each gradient once, such as AdamW or SGD",
        )


def _refused(optimizer: Any, what: str, step: Any, remedy: str) -> UnsupportedOpError:
    code = getattr(step, "__code__", None)
    where = Location(code.co_filename, code.co_firstlineno, step.__qualname__) if code is not None else None
    return UnsupportedOpError(f"{type(optimizer).__name__} {what}", code="TRN141", where=where, remedy=remedy)


def pre_hooks(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Hooks that run before the update, in their order."""
    return [*hooks_before.values(), *optimizer._optimizer_step_pre_hooks.values()]


def run_pre_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Run them while tracing, when gradients are there; what they compute becomes a part of the step.

    Raises UnsupportedOpError for one that changes what the optimizer's step is called with, or its settings.
    """
    for hook in pre_hooks(optimizer):
        before = [dict(group) for group in optimizer.param_groups]
        if hook(optimizer, (), {}) is not None:
            raise _hook_refused(hook, "changes the arguments of the optimizer's step")
        for old, new in zip(before, optimizer.param_groups):
            for key in old.keys() | new.keys():
                if old.get(key) is not new.get(key):
                    raise _hook_refused(hook, f"changes {key!r} of the optimizer")


def _hook_refused(hook: Any, what: str) -> UnsupportedOpError:
    code = getattr(hook, "__code__", None)
    where = Location(code.co_filename, code.co_firstlineno, hook.__qualname__) if code is not None else None
    return UnsupportedOpError(
        f"a hook before the optimizer's step {what}",
        code="TRN144",
        where=where,
        remedy="do that before the step is called; a change of the learning rate there takes effect",
    )


def run_post_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Run the hooks that belong after the update; they see the tensors themselves."""
    for hook in (*optimizer._optimizer_step_post_hooks.values(), *hooks_after.values()):
        hook(optimizer, (), {})


@contextmanager
def without_hooks(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within the block the optimizer has none: a subclass's step that calls its base's would run them twice."""
    tables = {name: getattr(optimizer, name) for name in _TABLES}
    try:
        for name in tables:
            setattr(optimizer, name, OrderedDict())
        yield
    finally:
        for name, table in tables.items():
            setattr(optimizer, name, table)


def gradient_hooks(parameter: Tensor) -> tuple[dict[int, Any], dict[int, Any]]:
    """Hooks on a parameter's gradient: those that may change it, and those that see it accumulated."""
    with functions_not_overridden():  # while tracing, an attribute of a parameter is that of its stand-in
        return parameter._backward_hooks or {}, parameter._post_accumulate_grad_hooks or {}  # type: ignore[attr-defined]


def take_over(real: Tensor, owned: Tensor) -> None:
    """Give the tensor that stands for a parameter its hooks."""
    if owned.requires_grad:
        for hook in gradient_hooks(real)[0].values():
            owned.register_hook(hook)


def accumulated(real: Tensor, owned: Tensor, name: str) -> None:
    """The gradient is there: run the hooks that wait for it."""
    for hook in gradient_hooks(real)[1].values():
        hook(owned)
        if owned.grad is None:
            raise UsageError(
                f"a hook takes the gradient of {name!r} away from the optimizer",
                code="TRN144",
                remedy="let the optimizer update this parameter, not the hook",
            )
