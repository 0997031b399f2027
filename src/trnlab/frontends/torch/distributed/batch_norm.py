# SPDX-License-Identifier: Apache-2.0
"""`torch.nn.SyncBatchNorm` on tensors of the device: batch normalization over the batches of all ranks.

PyTorch's own function is made of operators that exist for GPUs alone, and drops ranks without samples by a mask,
which waits for values. The same is computed here with sums, so that it is programs of the chip in eager mode and a
part of the program where a step is captured. Sums of squares are of what is left without the mean of all ranks: they
lose nothing where the mean is large.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn.modules import batchnorm

_pytorchs = batchnorm.sync_batch_norm


class _OverRanks(Function):
    """As PyTorch's, with its arguments."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        """Normalized by the statistics of all ranks; moves the running ones."""
        given, weight, bias, running_mean, running_var, eps, momentum, ctx.group, _ = args
        x = given if given.dtype is torch.float64 else given.float()
        sums = [x.sum(_others(x)), x.new_full((1,), x.numel() // x.shape[1])]
        totals = _added(torch.cat(sums), ctx.group)
        count, mean = totals[-1:], totals[:-1] / totals[-1:]
        centered = x - _by_channel(mean, x)
        squares = _added((centered * centered).sum(_others(x)), ctx.group)
        scale = torch.rsqrt(squares / count + eps)
        _move(running_mean, mean, momentum)
        _move(running_var, squares / (count - 1), momentum)
        normal = centered * _by_channel(scale, x)
        ctx.save_for_backward(normal, scale, weight, count)
        if weight is not None:
            normal = normal * _by_channel(weight, x) + _by_channel(bias, x)
        return normal.to(given.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of the input, over all ranks, and of weight and bias, of this rank's samples."""
        normal, scale, weight, count = ctx.saved_tensors
        grad = grads[0].to(normal.dtype)
        sums = [grad.sum(_others(grad)), (grad * normal).sum(_others(grad))]
        back = None
        if ctx.needs_input_grad[0]:
            means = _added(torch.cat(sums), ctx.group) / count
            channels = normal.shape[1]
            back = grad - _by_channel(means[:channels], grad) - normal * _by_channel(means[channels:], grad)
            factor = scale if weight is None else scale * weight
            back = (back * _by_channel(factor, grad)).to(grads[0].dtype)
        if weight is None:
            return back, *[None] * 8
        return back, sums[1].to(weight.dtype), sums[0].to(weight.dtype), *[None] * 6


def _others(x: Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [0, *range(2, x.dim())]


def _by_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (x.dim() - 2))


def _added(sums: Tensor, group: Any) -> Tensor:
    dist.all_reduce(sums, group=group)
    return sums


def _move(running: Tensor | None, now: Tensor, momentum: float) -> None:
    if running is not None:
        running.copy_(running * (1 - momentum) + now.to(running.dtype) * momentum)


class _Chosen:
    """Stands for PyTorch's function: ours for tensors of the device, its own for all others."""

    @staticmethod
    def apply(given: Tensor, *args: Any) -> Any:
        """See `torch.autograd.Function`."""
        function: Any = _OverRanks if given.device.type == "neuron" else _pytorchs
        return function.apply(given, *args)


def install() -> None:
    """Let the module use it. More than once is as good as once."""
    batchnorm.sync_batch_norm = _Chosen
