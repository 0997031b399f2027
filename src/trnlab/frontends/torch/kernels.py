# SPDX-License-Identifier: Apache-2.0
"""Kernels inside of models: a call of one is an operator of PyTorch, and one node of the graph.

    y = kernel(x)                                   # in a function that is compiled or captured: becomes the operator
    op = kernel_op(kernel, backward=kernel_bwd)     # with a derivative; or write a torch.autograd.Function

There is one operator for all kernels, `trnlab::nki`, told apart by a number: the call with its constants. It takes
the tensors of the call and returns what the kernel made, and new contents of the arguments that it writes to; copying
those back is an operator of its own. When a kernel is called while PyTorch traces, `launch` makes it that operator;
Dynamo, which does not run Python, is told to leave `launch` to the tracing that comes after it.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trnlab import kernel_hooks
from trnlab.errors import UnsupportedOpError, UsageError
from trnlab.frontends.after_import import when_imported
from trnlab.frontends.common import callee
from trnlab.frontends.torch.device.types import kind_of, type_of
from trnlab.frontends.torch.lowerings.registry import LoweringSite, UnsupportedOperatorForm, lowers
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.pytorch.dispatcher import is_functorchs
from trnlab.frontends.torch.pytorch.places import DECORATORS
from trnlab.graph.ir import TensorType, Value
from trnlab.guards.snapshot import IdentitySnapshot, snapshot
from trnlab.kernel_hooks import NOT_HANDLED
from trnlab.lang.formats import Format, format_of
from trnlab.nki.kernel import Kernel, stand_in
from trnlab.nki.neuronxcc import OldKernel
from trnlab.nki.tracing.arguments import iter_leaves, map_objects
from trnlab.nki.tracing.arrays import HostArray, like, to_host
from trnlab.nki.tracing.traces import KernelResult, Trace
from trnlab.program.callee import KernelCallee
from trnlab.program.strided import row_major

Tensors = Sequence[Tensor]
Backward = Callable[[Tensors, Tensors, Tensors], Any]
_LIBRARY = torch.library.Library("trnlab", "FRAGMENT")


class KernelOp:
    """See `kernel_op`."""

    def __init__(self, kernel: Kernel, backward: Backward | Kernel | None) -> None:
        self.kernel, self.backward = kernel, backward
        self.__name__ = kernel.function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel as an operator."""
        if torch.compiler.is_dynamo_compiling():
            return _launch_later(self, None, args, kwargs)
        return launch(self, args, kwargs)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def kernel_op(kernel: Any, backward: Backward | Kernel | None = None) -> KernelOp:
    """A kernel as an operator of PyTorch that can be differentiated.

    backward(grads, inputs, outputs) returns one gradient (or None) per input: all three are the tensors of a call, in
    the order in which it was given them, or gave them. It may call kernels and PyTorch. A kernel in its place is
    called with the gradients of the results and then the inputs, and returns the gradients.
    """
    if not isinstance(kernel, Kernel):
        raise UsageError(
            "only a kernel can become an operator",
            code="TRN132",
            got=repr(kernel),
            remedy="decorate the function with @nki.jit",
        )
    return KernelOp(kernel, backward)


# -- calls ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Slot:
    """Where a tensor of the call stands among its arguments."""

    index: int


@dataclass(frozen=True, eq=False)
class CallSite:
    """A kernel with everything about its arguments but the tensors. `made`: what its latest recordings gave."""

    kernel: Kernel
    args: Any
    kwargs: Any
    backward: Backward | Kernel | None
    made: dict[Any, KernelCallResult] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.function.__name__

    def recorded(self, tensors: Tensors) -> KernelCallResult:
        """The kernel recorded for tensors of these types."""
        types = tuple((tuple(int(n) for n in t.shape), t.dtype) for t in tensors)
        examples = [_example(shape, kind) for shape, kind in types]
        trace, arrays = self.traced(examples)
        known = self.made.get(types)
        if known is None or known.trace is not trace:
            known = self.made[types] = KernelCallResult(self, trace, _places(arrays, examples), types)
        return known

    def traced(self, arrays: Sequence[HostArray]) -> tuple[Trace, list[HostArray]]:
        """The recorded kernel, and its array arguments in its own order: these, and those that are constants."""
        args, kwargs = map_objects(lambda slot: arrays[slot.index], (self.args, self.kwargs), _Slot)
        return self.kernel.recorded(*args, **kwargs)


def _example(shape: tuple[int, ...], kind: torch.dtype) -> HostArray:
    """An array of that type whose contents do not matter."""
    fmt = format_of(kind)
    return HostArray(np.empty(shape, fmt.dtype), fmt, None)


def _places(arrays: Sequence[HostArray], examples: Sequence[HostArray]) -> tuple[int, ...]:
    """For each array argument the tensor that it is, or -1 for a constant."""
    found = {id(example): i for i, example in enumerate(examples)}
    return tuple(found.get(id(array), -1) for array in arrays)


@dataclass(frozen=True, eq=False)
class KernelCallResult:
    """What a call makes. The operator returns `fresh` (tensors of the trace), then the arguments it wrote to."""

    site: CallSite
    trace: Trace
    places: tuple[int, ...]
    types: tuple[tuple[tuple[int, ...], torch.dtype], ...]

    @property
    def fresh(self) -> list[int]:
        """The tensors that the kernel made and returns."""
        found: list[KernelResult] = []
        map_objects(found.append, self.trace.results, KernelResult)
        return sorted({r.param for r in found if r.param >= self.trace.arguments})

    @property
    def written(self) -> list[int]:
        """The array arguments that the kernel writes to, constants left out."""
        return [p for p in self.trace.written if self.places[p] >= 0]

    def empties(self, device: torch.device) -> list[Tensor]:
        """Tensors of the types that the operator returns."""
        kinds = [(b.shape, kind_of(b.dtype)) for b in (self.trace.tensors[p] for p in self.fresh)]
        kinds += [self.types[self.places[p]] for p in self.written]
        return [torch.empty(shape, dtype=kind, device=device) for shape, kind in kinds]

    def assemble(self, outs: Tensors, tensors: Tensors) -> Any:
        """What the caller of the kernel gets; copies new contents into the arguments that were written."""
        found = dict(zip(self.fresh, outs))
        for p, new in zip(self.written, outs[len(self.fresh) :]):
            found[p] = tensors[self.places[p]].copy_(new)
        for p in range(self.trace.arguments):
            if p not in found and self.places[p] >= 0:
                found[p] = tensors[self.places[p]]
        return map_objects(lambda r: self._seen(found[r.param], r), self.trace.results, KernelResult)

    def _seen(self, whole: Tensor, result: KernelResult) -> Tensor:
        """A result as a look at the tensor that it lies in."""
        same = format_of(whole.dtype) == str(result.format)
        if not same or result.strides != row_major(result.shape):
            raise UnsupportedOpError(
                f"kernel {self.site.name!r} returns a view that is not a run of a tensor's elements",
                code="TRN205",
                got=f"{result.format} {list(result.shape)}, strides {list(result.strides)}",
                remedy="return the tensor, and transpose or slice it in the model",
            )
        if tuple(whole.shape) == result.shape:
            return whole
        count = int(np.prod(result.shape))
        return whole.reshape(-1)[result.offset : result.offset + count].reshape(result.shape)


_SITES: list[CallSite] = []
_NUMBERS: dict[Any, int] = {}


def launch(called: Kernel | KernelOp, args: Any, kwargs: Any) -> Any:
    """Call a kernel as the operator: on tensors with data, or without while PyTorch traces."""
    kernel, backward = (called.kernel, called.backward) if isinstance(called, KernelOp) else (called, None)
    tensors: list[Tensor] = []

    def slot(tensor: Tensor) -> _Slot:
        tensors.append(tensor)
        return _Slot(len(tensors) - 1)

    template = map_objects(slot, (args, kwargs), Tensor)
    site = CallSite(kernel, template[0], template[1], backward)
    number = _number(site)
    outs = torch.ops.trnlab.nki(tensors, number)
    return _SITES[number].recorded(tensors).assemble(outs, tensors)


def _number(site: CallSite) -> int:
    """Equal calls have one number, so that a function that is traced again gives the same graph. Arrays that are
    constants count by identity and contents; the site keeps them."""
    key = (site.kernel.options, site.backward, snapshot((site.kernel, site.args, site.kwargs), _constant_or_kernel))
    number = _NUMBERS.setdefault(key, len(_SITES))
    if number == len(_SITES):
        _SITES.append(site)
    return number


def _constant_or_kernel(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (IdentitySnapshot(value), str(value.dtype), value.shape, value.tobytes())
    return stand_in(value)


# -- the operator ---------------------------------------------------------------------------------------------------


def _run(inputs: list[Tensor], call: int) -> list[Tensor]:
    """On data: execute the kernel on the simulated chip."""
    site = _SITES[call]
    given = [to_host(t) for t in inputs]
    trace, arrays = site.traced(given)
    made = KernelCallResult(site, trace, _places(arrays, given), tuple((tuple(t.shape), t.dtype) for t in inputs))
    own = [HostArray(a.data.copy(), a.format, a.origin) if i in made.written else a for i, a in enumerate(arrays)]
    memory = site.kernel.run(trace, own)
    outs = [like(memory[p], _format(trace, p), _first(inputs)) for p in (*made.fresh, *made.written)]
    kinds = [empty.dtype for empty in made.empties(torch.device("meta"))]
    return [out.to(kind) for out, kind in zip(outs, kinds)]


def _format(trace: Trace, number: int) -> Format:
    return format_of(trace.tensors[number].dtype.name)


def _types(inputs: list[Tensor], call: int) -> list[Tensor]:
    return _SITES[call].recorded(inputs).empties(_first(inputs).device)


def _first(inputs: Tensors) -> Tensor:
    """The tensor whose device results get: the first on the simulated chip, else the first."""
    return next((t for t in inputs if t.device.type == "neuron"), inputs[0])


def _save(ctx: Any, inputs: Any, output: list[Tensor]) -> None:
    tensors, ctx.call = inputs
    ctx.count = len(tensors)
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx: Any, grads: list[Tensor]) -> tuple[Any, ...]:
    site = _SITES[ctx.call]
    inputs, outputs = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    if site.backward is None:
        raise UsageError(
            f"kernel {site.name!r} has no derivative",
            code="TRN133",
            remedy="use trnlab.frontends.torch.kernel_op(kernel, backward=...) or a torch.autograd.Function",
        )
    if isinstance(site.backward, Kernel):
        found = site.backward(*grads, *inputs)
    else:
        found = site.backward(tuple(grads), inputs, outputs)
    found = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(found) != ctx.count:
        raise UsageError(
            f"the derivative of kernel {site.name!r} gives the wrong number of gradients",
            code="TRN133",
            limit=f"{ctx.count}, one per tensor",
            got=len(found),
        )
    return found, None


def _define() -> None:
    _LIBRARY.define("nki(Tensor[] inputs, int call) -> Tensor[]")
    for key in ("CPU", "PrivateUse1"):
        _LIBRARY.impl("nki", _run, key)
    torch.library.register_fake("trnlab::nki", _types, lib=_LIBRARY)
    torch.library.register_autograd("trnlab::nki", _differentiate, setup_context=_save, lib=_LIBRARY)


_define()


# -- into the graph -------------------------------------------------------------------------------------------------


@lowers("trnlab::nki.default")
def _custom_call(site: LoweringSite, inputs: list[Value], call: int) -> list[Value]:
    made = _SITES[call].recorded([node.meta["val"] for node in site.node.args[0]])  # type: ignore[union-attr, index]
    with site.b.at(site.b.loc, made.site.name):
        return list(site.b.custom_call(callee_of(made), *inputs))


def callee_of(made: KernelCallResult) -> KernelCallee:
    """The recorded call as what an op of the graph carries. Raises Refused for what no graph can hold."""
    operands = [TensorType(shape, _chip_format(kind)) for shape, kind in made.types]
    returned, constant = (*made.fresh, *made.written), partial(_constant, made)
    try:
        return callee.callee_of(
            made.site.name, made.trace, made.places, operands, returned, constant, partial(_execute, made)
        )
    except callee.NotAnOp as reason:
        raise UnsupportedOperatorForm(reason.reason, reason.do) from reason


def _chip_format(kind: torch.dtype) -> Any:
    return type_of(torch.empty((), dtype=kind, device="meta")).dtype


def _constant(made: KernelCallResult, number: int) -> Any:
    """The contents of an array argument that is no tensor of the graph."""
    examples = [_example(shape, kind) for shape, kind in made.types]
    return made.site.traced(examples)[1][number].data


def _execute(made: KernelCallResult, arrays: Sequence[Any]) -> list[Any]:
    """Results from operands, for the graph's interpreter."""
    given = [HostArray(_bits(a).copy(), format_of(kind), None) for a, (_, kind) in zip(arrays, made.types)]
    trace, ordered = made.site.traced(given)
    memory = made.site.kernel.run(trace, ordered)
    return [memory[p] for p in (*made.fresh, *made.written)]


def _bits(array: Any) -> Any:
    return array.view(np.uint8) if array.dtype == np.bool_ else array


# -- Dynamo ---------------------------------------------------------------------------------------------------------


# What Dynamo does not pass on is packed into dicts with one of these keys.
_NOTHING, _FUNCTION, _DATACLASS = "\0nothing", "\0function", "\0dataclass"


def _packed(value: Any) -> Any:
    """The same structure without None, functions (operators such as nl.add) and data classes (options of a kernel).
    Dynamo follows this."""
    if value is None:
        return {_NOTHING: 0}
    if isinstance(value, FunctionType):
        return {_FUNCTION: (value.__globals__["__name__"], value.__name__)}
    if isinstance(value, (tuple, list)):
        return type(value)([_packed(v) for v in value])
    if isinstance(value, dict):
        return {k: _packed(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return torch.as_tensor(value)  # as Dynamo itself does
    if is_dataclass(value):
        kind = type(value)
        fields = {name: _packed(getattr(value, name)) for name in kind.__dataclass_fields__}  # type: ignore[union-attr]
        return {_DATACLASS: (kind.__module__, kind.__qualname__), "fields": fields}
    return value


def _unpacked(value: Any) -> Any:
    """What `_packed` packed."""
    if isinstance(value, (tuple, list)):
        return type(value)([_unpacked(v) for v in value])
    if not isinstance(value, dict):
        return value
    if _NOTHING in value:
        return None
    if _FUNCTION in value:
        return getattr(sys.modules[value[_FUNCTION][0]], value[_FUNCTION][1])
    if _DATACLASS in value:
        module, name = value[_DATACLASS]
        made = object.__new__(operator.attrgetter(name)(sys.modules[module]))
        for field_name, field_value in value["fields"].items():
            object.__setattr__(made, field_name, _unpacked(field_value))
        return made
    return {k: _unpacked(v) for k, v in value.items()}


def _launch_unseen(called: Kernel | KernelOp, grid: Any, args: Any, kwargs: Any) -> Any:
    launched = called if _unpacked(grid) is None else called[_unpacked(grid)]  # type: ignore[index]
    return _packed(launch(launched, _unpacked(args), _unpacked(kwargs)))


def _launch_later(called: Kernel | KernelOp, grid: Any, args: Any, kwargs: Any) -> Any:
    """`launch`, when what Dynamo has made of the function is traced. Dynamo sees what goes in and comes out."""
    return _unpacked(_launch_unseen(called, _packed(grid), _packed(args), _packed(kwargs)))


def _leave_to_tracing(decorators: Any) -> None:
    """Have Dynamo go round `_launch_unseen`, once it is loaded, which takes half as long as PyTorch itself."""
    global _launch_unseen
    _launch_unseen = decorators.nonstrict_trace(_launch_unseen)


when_imported(DECORATORS, _leave_to_tracing)

for _kind in (Kernel, OldKernel, KernelOp, Format):
    pytree.register_constant(_kind)


# -- the hook of kernels --------------------------------------------------------------------------------------------


def trace_call(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a kernel asks before it runs: is this call to become an operator? See `kernel_hooks`."""
    if torch.compiler.is_dynamo_compiling():
        return _launch_later(kernel, None, args, kwargs)
    tensors = [x for x in iter_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if any(_is_symbol(t) for t in tensors) or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return launch(kernel, args, kwargs)
    return NOT_HANDLED


def _is_symbol(tensor: Tensor) -> bool:
    """Whether a tensor stands for one while PyTorch traces."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter)
    return not plain or is_functorchs(tensor)


class _Launched:
    """A kernel on a launch grid, as Dynamo may follow it."""

    def __init__(self, kernel: Kernel, grid: Any) -> None:
        self.kernel, self.grid = kernel, grid

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _launch_later(self.kernel, self.grid, args, kwargs)


def put_on_grid(kernel: Kernel, grid: Any) -> Any:
    """What a kernel asks before it is launched on a grid. See `kernel_hooks`."""
    return _Launched(kernel, grid) if torch.compiler.is_dynamo_compiling() else NOT_HANDLED


kernel_hooks.register("torch", trace_call, put_on_grid)
