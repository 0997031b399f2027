# SPDX-License-Identifier: Apache-2.0
"""Operators on `neuron` tensors outside of compiled programs: the host runs them, on the same memory, and counts.

One boxed kernel serves every operator of PyTorch: it relabels the arguments as CPU tensors, calls the operator and
relabels the results. What cannot go that way (allocation, views, copies between devices, storages) has its own kernel
below.

What counts as a host operator: one that computes or moves values of `neuron` tensors within the device's memory.
Views and allocations compute nothing, and copies between host and device are what the real machine's host does too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from trnlab import host_ops
from trnlab.errors import UsageError
from trnlab.frontends.torch.device.dispatch import Kernel, fall_back, implement
from trnlab.frontends.torch.device.dlpack import as_host, as_neuron, no_sparse
from trnlab.frontends.torch.device.numbers import only_device
from trnlab.frontends.torch.pytorch.dispatcher import DispatchKey, DispatchKeySet

_CPU = torch.device("cpu")
_CPU_KEY = DispatchKeySet(DispatchKey.CPU)
_TRANSFERS = frozenset({"aten::_local_scalar_dense"})
# Operators that take some of their tensors from the host: indices, lengths, numbers of steps.
_MIXED = ("aten::index", "aten::_index_put_impl_", "aten::_pack_padded", "aten::_foreach", "aten::_fused")
_OTHER_LAYOUTS = ("QuantizedPrivateUse1", "NestedTensorPrivateUse1")
_LIBRARIES: list[torch.library.Library] = []  # a library's kernels live as long as it does
NOT_HERE = object()  # what stands for the result of an operator that the chip does not compute


def _nowhere(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return NOT_HERE


_on_chip: Callable[[Any, Sequence[Any], dict[str, Any]], Any] = _nowhere


def ask_first(on_chip: Callable[[Any, Sequence[Any], dict[str, Any]], Any]) -> None:
    """From here on `on_chip(op, args, kwargs)` is asked for the result of each operator; see `eager.run`."""
    global _on_chip
    _on_chip = on_chip


def fallback_counts(phase: str = "training") -> dict[str, int]:
    """Operators that the host computed, by name, most frequent first.

    `phase` is "training" (from the first run of a compiled program on) or "setup" (before it: building and
    initialising the model, and everything where nothing is compiled). Their sums are the summary's
    `host_fallback_ops`.
    """
    return host_ops.current().by_name()[phase]


def reset_fallback_counts() -> None:
    """Forget all counts and return to the phase before the first program."""
    host_ops.current().reset()


# -- any operator ---------------------------------------------------------------------------------------------------


def boxed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run any operator on the CPU aliases of its arguments, unless the chip does."""
    name = op._schema.name
    _check_devices(name, (*args, *kwargs.values()))
    if name not in _TRANSFERS:
        computed = _on_chip(op, args, kwargs)
        if computed is not NOT_HERE:
            return computed
    written = _outs(op)
    if not op._schema.is_mutable:
        made = _neuron(_called(op, _host(args), {k: _host(v) for k, v in kwargs.items()}), {})
        _count(name, made)
        return made
    given = dict(enumerate(args)) | kwargs
    together = _together(list(given.values()))
    hosts = {
        key: _host(value, together) if _place(op, key) not in written or _shares(value, together) else _fresh(value)
        for key, value in given.items()
    }
    result = _called(op, [hosts[i] for i in range(len(args))], {k: hosts[k] for k in kwargs})
    originals: dict[int, Tensor] = {}
    for key, value in given.items():
        _deliver(hosts[key], value, originals, _place(op, key) in written)
    made = _neuron(result, originals)
    _count(name, made)
    return made


def _count(name: str, made: Any) -> None:
    """The host computed an operator. What makes no element computes nothing: the rows of an expert without any."""
    tensors = _flat(made if isinstance(made, (list, tuple)) else [made])
    if name not in _TRANSFERS and (not tensors or any(t.numel() for t in tensors)):
        host_ops.current().add(name)


def _called(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The operator's result. Raises UsageError where PyTorch has none for the host's processor.

    PyTorch turns `x % 2` into an operator of two tensors; the second comes here as the number that it was.
    """
    if "batch_norm" in op._schema.name and not kwargs:
        from trnlab.frontends.torch.device import batch_norms

        return batch_norms.called(op, args)
    numbers = any(i < len(args) and isinstance(args[i], (int, float, complex)) for i in _tensors(op))
    try:
        return (op.overloadpacket if numbers else op)(*args, **kwargs)
    except NotImplementedError as error:
        if "Could not run" not in str(error):
            raise
        raise UsageError(
            f"PyTorch cannot run {op._schema.name} on the host's processor, which stands in for the device outside "
            "of compiled programs",
            code="TRN152",
            remedy="write it with other operators",
        ) from error


@lru_cache(maxsize=4096)
def _outs(op: Any) -> frozenset[int]:
    """Places of the arguments that the caller gives for results: the operator may resize them."""
    return frozenset(i for i, argument in enumerate(op._schema.arguments) if argument.is_out)


@lru_cache(maxsize=4096)
def _tensors(op: Any) -> tuple[int, ...]:
    """Places of the arguments that are one tensor each."""
    return tuple(i for i, argument in enumerate(op._schema.arguments) if str(argument.type) == "Tensor")


def _place(op: Any, key: int | str) -> int:
    """Where an argument, known by its place or its name, stands in the operator's schema."""
    if isinstance(key, int):
        return key
    return next(i for i, argument in enumerate(op._schema.arguments) if argument.name == key)


def _host(value: Any, together: dict[int, torch.UntypedStorage] | None = None) -> Any:
    """Tensors of the host over the same memory; those of storages that are known `together` share one on the host."""
    if isinstance(value, Tensor):
        if _shares(value, together):
            return _within(together[value.untyped_storage()._cdata], value)  # type: ignore[index]
        return as_host(value)
    if isinstance(value, torch.device):
        return _CPU if only_device(value).type == "neuron" else value
    if isinstance(value, (list, tuple)):
        return type(value)(_host(v, together) for v in value)
    return value


def _within(storage: torch.UntypedStorage, tensor: Tensor) -> Tensor:
    host = torch.empty(0, dtype=tensor.dtype)
    lies = tensor.storage_offset(), tensor.shape, tensor.stride()
    return host.set_(storage, *lies)  # type: ignore[call-overload,no-any-return]


def _together(values: Sequence[Any]) -> dict[int, torch.UntypedStorage]:
    """Storages that several tensors of a call lie in, on the host: PyTorch looks whether what is written to is read
    in other places, and refuses that."""
    met: dict[int, Tensor] = {}
    found: dict[int, torch.UntypedStorage] = {}
    for t in _flat(values):
        if t.device.type != "neuron" or t.is_conj() or t.is_neg() or t._is_zerotensor():
            continue
        key = t.untyped_storage()._cdata
        if key in met and met[key] is not t and key not in found:
            everything = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
            found[key] = as_host(everything).untyped_storage()
        met.setdefault(key, t)
    return found


def _flat(values: Sequence[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(_flat(value))
    return found


def _shares(value: Any, together: dict[int, torch.UntypedStorage] | None) -> bool:
    return bool(together) and isinstance(value, Tensor) and value.untyped_storage()._cdata in together  # type: ignore[operator]


def _fresh(value: Any) -> Any:
    """CPU tensors that an operator may make its results in."""
    if isinstance(value, Tensor):
        return torch.empty(0, dtype=value.dtype) if value.device.type == "neuron" else value
    return type(value)(_fresh(v) for v in value) if isinstance(value, (list, tuple)) else value


def _deliver(host: Any, value: Any, originals: dict[int, Tensor], fresh: bool) -> None:
    """Note which of the caller's tensors each host tensor stands for; give those for results what was made."""
    if isinstance(value, (list, tuple)):
        for h, v in zip(host, value):
            _deliver(h, v, originals, fresh)
    elif isinstance(value, Tensor) and value.device.type == "neuron":
        originals[id(host)] = value
        if fresh and host.shape == value.shape:
            as_host(value).copy_(host)
        elif fresh or host.shape != value.shape:
            give_memory(value, as_neuron(host))


def give_memory(tensor: Tensor, other: Tensor) -> None:
    """Let `tensor` be what `other` is, in the same memory."""
    torch.ops.aten.set_.source_Tensor(tensor, other)


def _neuron(value: Any, originals: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return originals[id(value)] if id(value) in originals else as_neuron(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_neuron(v, originals) for v in value)
    return value


# -- devices --------------------------------------------------------------------------------------------------------


def _check_devices(name: str, values: Sequence[Any]) -> None:
    """Raise RuntimeError, as PyTorch does, when some tensors are on the CPU; single numbers may be."""
    for value in values:
        if isinstance(value, (list, tuple)):
            _check_devices(name, value)
        elif isinstance(value, Tensor) and value.is_cpu and value.dim() and not name.startswith(_MIXED):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {name} got tensors on neuron:0 and on cpu"
            )


def _refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Every operator on tensors of a layout that the device lacks."""
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
    raise no_sparse(next((t.layout for t in tensors if t.layout != torch.strided), op._schema.name))


# -- operators with a kernel of their own ---------------------------------------------------------------------------


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    if source.device.type == target.device.type:
        if not target.numel() and source.shape == target.shape:
            return target
        if _on_chip(torch.ops.aten.copy_.default, (target, source), {}) is not NOT_HERE:
            return target
        host_ops.current().add("aten::copy_")
        together = _together((target, source))
        if together:
            taken = _host(source, together)
            one = all(n == 1 or step == 0 for n, step in zip(taken.shape, taken.stride()))
            _host(target, together).copy_(taken.clone() if one else taken)  # `x[:] = x[0]`: a number, as on the CPU
            return target
    as_host(target).copy_(as_host(source, reads=True))
    return target


def _copy_from_and_resize(source: Tensor, target: Tensor) -> Tensor:
    return _copy_from(source, target.resize_(source.shape))


def _empty(
    size: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Tensor:
    only_device(device)
    if layout not in (None, torch.strided):
        raise no_sparse(layout)
    memory_format = memory_format or torch.contiguous_format
    return as_neuron(without_garbage(torch.empty(size, dtype=dtype, device=_CPU, memory_format=memory_format)))


def _empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Tensor:
    only_device(device)
    return as_neuron(without_garbage(torch.empty_strided(size, stride, dtype=dtype, device=_CPU)))


def without_garbage(new: Tensor) -> Tensor:
    """64-bit integers begin at zero: the chip has 32 bits, and refuses what else lies in memory that nobody wrote."""
    return new.zero_() if new.dtype is torch.int64 else new


def _resize(self: Tensor, size: Any, *, memory_format: Any = None) -> Tensor:
    """In the tensor's own memory where it is large enough, else in new memory with the same beginning."""
    like = torch.empty(size, dtype=self.dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    room = self.untyped_storage().nbytes() // self.element_size()
    if self.storage_offset() + like.numel() <= room:
        ops = torch.ops.aten.set_.source_Storage_storage_offset
        ops(self, self.untyped_storage(), self.storage_offset(), like.shape, like.stride())
        return self
    grown = torch.empty_strided(like.shape, like.stride(), dtype=self.dtype)
    kept = room - self.storage_offset()
    if kept > 0:
        held = as_host(torch.as_strided(self, (kept,), (1,)))
        torch.as_strided(grown, (kept,), (1,)).copy_(held)
    give_memory(self, as_neuron(grown))
    return self


def _forget(self: Tensor) -> Tensor:
    give_memory(self, as_neuron(torch.empty(0, dtype=self.dtype)))
    return self


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Tensor:
    args = (x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    computed: Tensor = _on_chip(torch.ops.aten.convolution.default, args, {})
    if computed is not NOT_HERE:
        return computed
    host_ops.current().add("aten::convolution")
    bias = None if bias is None else as_host(bias)
    result = torch.convolution(
        as_host(x), as_host(weight), bias, stride, padding, dilation, transposed, output_padding, groups
    )
    return as_neuron(result)


def _convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Any,
) -> tuple[Tensor | None, ...]:
    bias_sizes = [weight.shape[1] * groups if transposed else weight.shape[0]] if output_mask[2] else None
    places = (stride, padding, dilation, transposed, output_padding, groups, output_mask)
    op = torch.ops.aten.convolution_backward.default
    computed: tuple[Tensor | None, ...] = _on_chip(op, (grad, x, weight, bias_sizes, *places), {})
    if computed is not NOT_HERE:
        return computed
    host_ops.current().add("aten::convolution_backward")
    results = op(as_host(grad), as_host(x), as_host(weight), bias_sizes, *places)
    return tuple(None if r is None else as_neuron(r) for r in results)


def _group_norm(*args: Any) -> Any:
    """The operator as one, of which PyTorch's code for unknown devices takes views that not all strides allow."""
    return boxed(torch.ops.aten.native_group_norm.default, *args)


def _histc(self: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """The operator as one, and of integers as other devices have it."""
    if self.is_floating_point():
        return boxed(torch.ops.aten.histc.default, self, bins, min, max)
    from trnlab.frontends.torch.device import counting

    return counting.histogram(self, bins, int(min), int(max))


def _record_stream(self: Tensor, s: Any) -> None:
    """Nothing: work on the device is done when the operator returns."""


def _to_copy(
    self: Tensor,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """PyTorch's own, without the pinned memory that a copy to the host takes which nobody waits for."""
    op = torch.ops.aten._to_copy.default
    return op.redispatch(_CPU_KEY, self, dtype=dtype, layout=layout, device=device, memory_format=memory_format)


def _device_agnostic(op: Any) -> Kernel:
    """PyTorch's own CPU kernel, which for a view makes a new header over the same storage, whatever the device."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return op.redispatch(_CPU_KEY, *args, **kwargs)

    return run


class Strideless:
    """Whether tensors are viewed as those of torch_xla, which have no strides: any shape of the same size will do."""

    wanted = False


def _view(self: Tensor, size: Any) -> Tensor:
    """PyTorch's own; where strides forbid it, in a script for torch_xla, of a copy, whose writes are its own."""
    op = torch.ops.aten.view.default
    try:
        return op.redispatch(_CPU_KEY, self, size)
    except RuntimeError:
        if not Strideless.wanted:
            raise
        return op.redispatch(_CPU_KEY, self.contiguous(), size)


def register() -> None:
    """Give the dispatch key of outside backends the kernels of this file. Called once."""
    everything = torch.library.Library("_", "IMPL")
    fall_back(everything, boxed, "PrivateUse1")
    for key in _OTHER_LAYOUTS:
        fall_back(everything, _refuse, key)
    aten = torch.library.Library("aten", "IMPL")
    kernels: dict[str, Kernel] = {
        "_copy_from": _copy_from,
        "_copy_from_and_resize": _copy_from_and_resize,
        "empty.memory_format": _empty,
        "empty_strided": _empty_strided,
        "resize_": _resize,
        "set_": _forget,
        "record_stream": _record_stream,
        "view": _view,
        "_to_copy": _to_copy,
        "convolution_overrideable": _convolution,
        "convolution_backward_overrideable": _convolution_backward,
        "native_group_norm": _group_norm,
        "histc": _histc,
    }
    for name, kernel in kernels.items():
        implement(aten, name, kernel, "PrivateUse1")
    for name in ("_copy_from", "_copy_from_and_resize"):
        for key in ("Conjugate", "Negative"):  # `_copy_from` copies those, else they would be copied first, by itself
            aten.impl(name, torch.library.fallthrough_kernel, key)
    ops = torch.ops.aten
    for op in (
        ops.as_strided.default,
        ops.view_as_real.default,
        ops.view_as_complex.default,
        ops._reshape_alias.default,
        ops.unfold.default,
        ops.set_.source_Storage,
        ops.set_.source_Storage_storage_offset,
        ops.set_.source_Tensor,
    ):
        implement(aten, op, _device_agnostic(op), "PrivateUse1")
    _LIBRARIES.extend((everything, aten))
