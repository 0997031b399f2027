# SPDX-License-Identifier: Apache-2.0
"""Operators on `neuron` tensors outside of compiled programs: the host runs them, on the same memory, and counts.

One boxed kernel serves every operator of PyTorch: it relabels the arguments as CPU tensors, calls the operator and
relabels the results. What cannot go that way (allocation, views, copies between devices, storages) has its own kernel
below.

What counts as a host operator: one that computes or moves values of `neuron` tensors within the device's memory.
Views and allocations compute nothing, and copies between host and device are what the real machine's host does too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from trnlab.frontends.torch.dlpack import as_host, as_neuron

_CPU = torch.device("cpu")
_CPU_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_TRANSFERS = frozenset({"aten::_local_scalar_dense", "aten::resize_"})
_LIBRARIES: list[torch.library.Library] = []  # a library's kernels live as long as it does


class HostOpLog:
    """How often each operator ran on the host, before and after the first compiled program started."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, as if no program had run."""
        self.setup: Counter[str] = Counter()
        self.training: Counter[str] = Counter()
        self._now = [self.setup]

    def add(self, name: str) -> None:
        """Operator `name` ran."""
        for counts in self._now:
            counts[name] += 1

    def program_started(self, session_counts: Counter[str] | None = None) -> None:
        """From here on what the host computes is missing from the programs; it also counts in `session_counts`."""
        self._now = [self.training] if session_counts is None else [self.training, session_counts]


LOG = HostOpLog()


def fallback_counts(phase: str = "training") -> dict[str, int]:
    """Operators that the host computed, by name, most frequent first.

    `phase` is "training" (from the first run of a compiled program on; their sum is the summary's
    `host_fallback_ops`) or "setup" (before it: building and initialising the model).
    """
    return dict((LOG.training if phase == "training" else LOG.setup).most_common())


def reset_fallback_counts() -> None:
    """Forget all counts and return to the phase before the first program."""
    LOG.reset()


def _host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return as_host(value)
    if isinstance(value, torch.device):
        return _CPU if value.type == "neuron" else value
    if isinstance(value, (list, tuple)):
        return type(value)(_host(v) for v in value)
    return value


def _resizable(value: Any) -> Any:
    """An empty `out=` argument becomes a fresh CPU tensor, because the operator will resize it."""
    if isinstance(value, torch.Tensor) and value.device.type == "neuron" and value.numel() == 0:
        return torch.empty(0, dtype=value.dtype)
    return _host(value)


def _boxed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run any operator on the CPU aliases of its arguments."""
    if op._schema.name not in _TRANSFERS:
        LOG.add(op._schema.name)
    if not op._schema.is_mutable:
        return _neuron(op(*_host(args), **{k: _host(v) for k, v in kwargs.items()}), {})
    given = [*args, *kwargs.values()]
    hosts = [_resizable(v) for v in given]
    result = op(*hosts[: len(args)], **dict(zip(kwargs, hosts[len(args) :])))
    originals: dict[int, torch.Tensor] = {}
    for host, value in zip(hosts, given):
        if isinstance(value, torch.Tensor) and value.device.type == "neuron":
            originals[id(host)] = value
            if host.shape != value.shape:
                value.data = as_neuron(host)
    return _neuron(result, originals)


def _neuron(value: Any, originals: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return originals[id(value)] if id(value) in originals else as_neuron(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_neuron(v, originals) for v in value)
    return value


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if source.device.type == target.device.type:
        LOG.add("aten::copy_")
    as_host(target).copy_(as_host(source))
    return target


def _empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return as_neuron(
        torch.empty(size, dtype=dtype, device=_CPU, memory_format=memory_format or torch.contiguous_format)
    )


def _empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    return as_neuron(torch.empty_strided(size, stride, dtype=dtype, device=_CPU))


def _resize(self, size, *, memory_format=None):
    grown = torch.empty(size, dtype=self.dtype)
    kept = min(self.numel(), grown.numel())
    grown.view(-1)[:kept] = as_host(self).reshape(-1)[:kept]
    self.data = as_neuron(grown)
    return self


def _convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    LOG.add("aten::convolution")
    bias = None if bias is None else as_host(bias)
    result = torch.convolution(
        as_host(x), as_host(weight), bias, stride, padding, dilation, transposed, output_padding, groups
    )
    return as_neuron(result)


def _convolution_backward(
    grad, x, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    LOG.add("aten::convolution_backward")
    bias_sizes = [weight.shape[1] * groups if transposed else weight.shape[0]] if output_mask[2] else None
    results = torch.ops.aten.convolution_backward(
        as_host(grad), as_host(x), as_host(weight), bias_sizes, stride, padding, dilation, transposed, output_padding,
        groups, output_mask,
    )  # fmt: skip
    return tuple(None if r is None else as_neuron(r) for r in results)


def _device_agnostic(op: Any) -> Any:
    """PyTorch's own CPU kernel, which for a view makes a new header over the same storage, whatever the device."""
    return lambda *args, **kwargs: op.redispatch(_CPU_KEY, *args, **kwargs)


def register() -> None:
    """Give the dispatch key of outside backends the kernels of this file. Called once."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_boxed, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    for name, kernel in {
        "_copy_from": _copy_from,
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "resize_": _resize,
        "convolution_overrideable": _convolution,
        "convolution_backward_overrideable": _convolution_backward,
    }.items():
        aten.impl(name, kernel, "PrivateUse1")
    ops = torch.ops.aten
    for op in (
        ops.as_strided.default,
        ops.view.default,
        ops._reshape_alias.default,
        ops.unfold.default,
        ops.set_.source_Storage,
        ops.set_.source_Storage_storage_offset,
        ops.set_.source_Tensor,
    ):
        aten.impl(op, _device_agnostic(op), "PrivateUse1")
    _LIBRARIES.extend((everything, aten))
