# SPDX-License-Identifier: Apache-2.0
"""Losses of several classes by their margins, as PyTorch's kernels for the CPU compute them.

Of the loss of several labels PyTorch's own decomposition counts labels behind the first -1 as class 0; the kernels
leave them out. A margin that is NaN is no loss. Letters: N samples, D classes, K labels of a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_MEAN, _SUM = 1, 2  # PyTorch's numbers of reductions


def decompositions() -> dict[Any, Callable[..., Any]]:
    """By operator."""
    aten = torch.ops.aten
    return {
        aten.multi_margin_loss.default: one_label,
        aten.multi_margin_loss_backward.default: one_label_backward,
        aten.multilabel_margin_loss_forward.default: labels_forward,
        aten.multilabel_margin_loss_backward.default: labels_backward,
    }


def one_label(
    x: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    """The loss of x [N, D] or [D]; `target` names a class of each."""
    rows, target = torch.atleast_2d(x), target.reshape(-1)
    over, counts = _over_one(rows, target, margin)
    losses = over if p == 1 else over * over
    if weight is not None:
        losses = losses * weight[target][:, None]
    return _reduced(torch.where(counts, losses, 0.0).sum(1) / rows.shape[1], reduction, x)


def _over_one(rows: Tensor, target: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """margin - x of the label + x of each class, and whether that counts: [N, D]."""
    here = torch.arange(rows.shape[1], device=rows.device) == target[:, None]
    over = margin - rows.gather(1, target[:, None]) + rows
    return over, (over > 0) & ~here


def _reduced(losses: Tensor, reduction: int, x: Tensor) -> Tensor:
    """Those of the samples; of one sample without a dimension for it, a number."""
    loss = losses.mean() if reduction == _MEAN else losses.sum() if reduction == _SUM else losses
    return loss.reshape(()) if x.dim() < 2 else loss


def one_label_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """The gradient of x [N, D] or [D]; `target` names a class of each."""
    rows, target = torch.atleast_2d(x), target.reshape(-1)
    over, counts = _over_one(rows, target, margin)
    steep = _share(grad, rows, reduction) * (1 if p == 1 else 2 * over)
    if weight is not None:
        steep = steep * weight[target][:, None]
    here = torch.arange(rows.shape[1], device=x.device) == target[:, None]
    steep = torch.where(counts, steep, 0.0)
    return torch.where(here, -steep.sum(1, keepdim=True), steep).reshape(x.shape)


def _share(grad: Tensor, rows: Tensor, reduction: int) -> Tensor:
    """What each class of a sample has of its gradient: [N, 1], or one number for all."""
    if reduction == _MEAN:
        return grad / (rows.shape[0] * rows.shape[1])
    return (grad if reduction == _SUM else grad.reshape(-1, 1)) / rows.shape[1]


def labels_forward(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """The loss, and which classes of x [N, D] or [D] are among the labels, as numbers."""
    rows = torch.atleast_2d(x)
    over, counts, named = _margins(rows, torch.atleast_2d(target))
    losses = torch.where(counts & (over > 0), over, 0.0).sum((1, 2)) / rows.shape[1]
    return _reduced(losses, reduction, x), named.any(1).to(x.dtype).reshape(target.shape)


def labels_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor) -> Tensor:
    """The gradient of x: each margin that counts pulls its class up and its label down."""
    rows = torch.atleast_2d(x)
    over, counts, named = _margins(rows, torch.atleast_2d(target))
    pulls = (counts & (over > 0)).to(x.dtype)
    down = (pulls.sum(2, keepdim=True) * named.to(x.dtype)).sum(1)
    return ((pulls.sum(1) - down) * _share(grad, rows, reduction)).reshape(x.shape)


def _margins(rows: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[N, K, D]: 1 - x of label k + x of class d, whether it counts, and whether label k is class d."""
    classes = torch.arange(rows.shape[1], device=rows.device)
    end = torch.where(target < 0, classes, rows.shape[1]).amin(1, keepdim=True)  # labels end at the first -1
    valid = classes < end
    over = 1.0 - rows.gather(1, torch.where(valid, target, 0)).unsqueeze(2) + rows.unsqueeze(1)
    named = (target.unsqueeze(2) == classes) & valid.unsqueeze(2)
    return over, valid.unsqueeze(2) & ~named.any(1, keepdim=True), named
