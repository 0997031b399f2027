# SPDX-License-Identifier: Apache-2.0
"""Operators that draw random numbers, in a recording: the host draws, at once and in the order of the script.

So the generator moves on as it does for PyTorch's own operators, the values are those of the host, and a step's
program, of which they are an input, is the same for all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trnlab import host_ops
from trnlab.frontends.torch.device.dlpack import as_neuron
from trnlab.frontends.torch.recording.recorder import NOT_RECORDED, OperatorRecorder
from trnlab.frontends.torch.recording.tracing import follower

Again = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
_aten = torch.ops.aten
# Those that write numbers which hang on no tensor to their first argument, whatever it held.
_SOURCES = frozenset(
    {
        _aten.bernoulli_.float,
        _aten.normal_.default,
        _aten.uniform_.default,
        _aten.random_.default,
        _aten.random_.to,
        getattr(_aten.random_, "from"),
        _aten.exponential_.default,
        _aten.geometric_.default,
        _aten.cauchy_.default,
        _aten.log_normal_.default,
    }
)


def draw(recorder: OperatorRecorder, again: Again, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of an operator that draws; `NOT_RECORDED` where the host has to compute all of it."""
    if op is _aten.native_dropout.default:
        return _dropout(again, *args)
    if op not in _SOURCES:
        return NOT_RECORDED
    target: Tensor = args[0]
    if recorder.slot_of(target) is None:
        return NOT_RECORDED  # nothing waits for this memory: it is written now
    host_ops.current().add(op._schema.name)
    like = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype, device="meta")
    drawn = _drawn(op, like, lambda new: op(new, *args[1:], **kwargs))
    again(_aten.copy_.default, (target, drawn), {})
    return target


def _drawn(op: Any, like: Tensor, fill: Callable[[Tensor], Any]) -> Tensor:
    """A tensor of the device that `fill` has filled for an operator."""
    followed = follower()
    if followed is not None:
        return followed.drawn(op, like, fill)
    made = torch.empty_like(like, device="cpu")
    fill(made)
    return as_neuron(made)


def _dropout(again: Again, x: Tensor, p: float, train: bool | None) -> Any:
    """As PyTorch's kernel for the CPU: a mask of bytes, a product and a scale."""
    if train is False or not x.numel():
        return NOT_RECORDED
    host_ops.current().add("aten::native_dropout")
    kept = 1.0 - p
    like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    mask = _drawn(
        _aten.native_dropout.default, torch.empty_like(like, dtype=torch.bool), lambda new: new.bernoulli_(kept)
    )
    y = again(_aten.mul.Tensor, (x, mask), {})
    return again(_aten.mul.Tensor, (y, 1.0 / kept if kept else 0.0), {}), mask
