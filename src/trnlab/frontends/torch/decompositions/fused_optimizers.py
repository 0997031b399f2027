# SPDX-License-Identifier: Apache-2.0
"""PyTorch's fused updates (`AdamW(fused=True)`), an operator over all parameters, in terms of plain operators.

PyTorch never traces them, since they are one kernel of the device. Here that kernel is a program. For mixed precision
`grad_scale` divides the gradients, and where `found_inf` is 1 nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tensors = Sequence[Tensor]


def _unscaled(grad: Tensor, grad_scale: Tensor | None) -> Tensor:
    return grad if grad_scale is None else grad / grad_scale


def _gradient(grad: Tensor, p: Tensor, weight_decay: float, maximize: bool, grad_scale: Tensor | None) -> Tensor:
    grad = _unscaled(grad, grad_scale)
    grad = -grad if maximize else grad
    return grad if weight_decay == 0 else grad + weight_decay * p


def _unless(found_inf: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    return new if found_inf is None else torch.where(found_inf.reshape(()) == 1, old, new)


def _adam_of(decoupled: bool) -> Callable[..., tuple[list[Tensor], ...]]:
    def adam(
        self: Tensors,
        grads: Tensors,
        exp_avgs: Tensors,
        exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors,
        state_steps: Tensors,
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> tuple[list[Tensor], ...]:
        results: tuple[list[Tensor], ...] = ([], [], [], [], [])
        for i, (p, given, m, v, step) in enumerate(zip(self, grads, exp_avgs, exp_avg_sqs, state_steps)):
            g = _gradient(given, p, 0 if decoupled else weight_decay, maximize, grad_scale)
            new_m, new_v = torch.lerp(m, g, 1 - beta1), v * beta2 + g * g * (1 - beta2)
            top = torch.maximum(max_exp_avg_sqs[i], new_v) if amsgrad else new_v
            denominator = top.sqrt() / (1 - beta2**step).sqrt() + eps
            decayed = p * (1 - lr * weight_decay) if decoupled and weight_decay else p
            new_p = decayed - (lr / (1 - beta1**step)) * (new_m / denominator)
            unscaled = _unscaled(given, grad_scale)
            olds = (p, given, m, v, max_exp_avg_sqs[i] if amsgrad else v)
            for result, new, old in zip(results, (new_p, unscaled, new_m, new_v, top), olds):
                result.append(_unless(found_inf, new, old))
        return results if amsgrad else (*results[:4], [])

    return adam


def _sgd(
    self: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> tuple[list[Tensor], ...]:
    params, unscaled, buffers = [], [], []
    for i, (p, given) in enumerate(zip(self, grads)):
        g = _gradient(given, p, weight_decay, maximize, grad_scale)
        if momentum:
            old = momentum_buffer_list[i]
            buffer = g if is_first_step else momentum * old + (1 - dampening) * g
            buffers.append(_unless(found_inf, buffer, old))
            g = g + momentum * buffer if nesterov else buffer
        params.append(_unless(found_inf, p - lr * g, p))
        unscaled.append(_unless(found_inf, _unscaled(given, grad_scale), given))
    return params, unscaled, buffers


def _adagrad(
    self: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: float,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> tuple[list[Tensor], ...]:
    params, unscaled, sums = [], [], []
    for p, given, total, step in zip(self, grads, state_sums, state_steps):
        g = _gradient(given, p, weight_decay, maximize, grad_scale)
        new_sum = total + g * g
        rate = lr / (1 + (step - 1) * lr_decay)
        params.append(_unless(found_inf, p - rate * g / (new_sum.sqrt() + eps), p))
        sums.append(_unless(found_inf, new_sum, total))
        unscaled.append(_unless(found_inf, _unscaled(given, grad_scale), given))
    return params, unscaled, sums


_UPDATES: dict[str, tuple[Callable[..., tuple[list[Tensor], ...]], tuple[str, ...]]] = {
    "_fused_adam": (_adam_of(False), ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")),
    "_fused_adamw": (_adam_of(True), ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")),
    "_fused_sgd": (_sgd, ("self", "grads", "momentum_buffer_list")),
    "_fused_adagrad": (_adagrad, ("self", "grads", "state_sums")),
}  # of each: the lists with what the update makes of them, and the arguments that it writes those to
NAMES = frozenset(_UPDATES)


def update(name: str, given: Mapping[str, Any]) -> None:
    """The update `name` (of `NAMES`) on arguments by name, written to its lists; `lr` may be a tensor."""
    compute, written = _UPDATES[name]
    results = compute(**given)
    for argument, values in zip(written, results):
        for target, value in zip(given[argument], values):
            if value is not target:
                target.copy_(value)
