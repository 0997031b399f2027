# SPDX-License-Identifier: Apache-2.0
"""Kernels inside of functions that JAX traces: a call is one operation of JAX, told apart by a number.

In a function that is compiled for the chip it becomes one op of the graph, and a call of the kernel's own routine in
the program. Elsewhere (`jax.jit` on the host) it is a callback that runs the kernel on the simulated chip. It has no
derivative: write a `jax.custom_vjp`. `jax.vmap` calls it once for each element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from trnlab import kernel_hooks
from trnlab.errors import UnsupportedOpError, UsageError
from trnlab.frontends.common import callee
from trnlab.frontends.stablehlo.lowerings.calls import TARGETS
from trnlab.frontends.stablehlo.mlir import text
from trnlab.frontends.stablehlo.registry import OpSite, UnsupportedForm
from trnlab.graph.ir import TensorType
from trnlab.kernel_hooks import NOT_HANDLED
from trnlab.nki.tracing.arguments import iter_leaves, map_objects
from trnlab.nki.tracing.arrays import to_host
from trnlab.nki.tracing.traces import KernelResult
from trnlab.numerics.dtypes import dtype
from trnlab.program.callee import KernelCallee
from trnlab.program.strided import row_major

Array = np.ndarray[Any, Any]
_TARGET = "trnlab.nki"
_CALLS: list[_Call] = []
for_chip: list[bool] = []
"""Not empty while JAX lowers a function for the chip."""


@dataclass(frozen=True, eq=False)
class _Slot:
    """Where an array of the call stands among its arguments."""

    index: int


@dataclass(frozen=True, eq=False)
class _Call:
    """A kernel with everything about its arguments but the traced arrays, and what it returns."""

    kernel: Any
    args: Any
    kwargs: Any
    types: tuple[Any, ...]

    @property
    def name(self) -> str:
        return str(self.kernel.function.__name__)

    def with_arrays(self, arrays: Sequence[Any]) -> tuple[Any, Any]:
        """The arguments, with these arrays in their places."""
        return map_objects(lambda slot: arrays[slot.index], (self.args, self.kwargs), _Slot)

    def recorded(self, arrays: Sequence[Any]) -> Any:
        """(trace, array arguments in the kernel's order) for these arrays."""
        args, kwargs = self.with_arrays(arrays)
        return self.kernel.recorded(*args, **kwargs)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """New tensors that the kernel returns, computed on the simulated chip."""
        given = [to_host(np.array(a)) for a in arrays]
        trace, ordered = self.recorded(given)
        memory = self.kernel.run(trace, ordered)
        return [np.asarray(memory[p]).reshape(trace.tensors[p].shape) for p in fresh(trace)]


def fresh(trace: Any) -> list[int]:
    """The tensors that a kernel made and returns."""
    found: list[KernelResult] = []
    map_objects(found.append, trace.results, KernelResult)
    return sorted({r.param for r in found})


def trace_call(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a kernel asks before it runs: is this call to become an operation? See `kernel_hooks`."""
    if not any(isinstance(x, jax.core.Tracer) for x in iter_leaves((args, kwargs))):
        return NOT_HANDLED
    traced: list[Any] = []

    def slot(tracer: Any) -> Any:
        traced.append(tracer)
        return _Slot(len(traced) - 1)

    template = map_objects(slot, (args, kwargs), jax.core.Tracer)
    call = _Call(kernel, template[0], template[1], tuple((x.shape, np.dtype(x.dtype)) for x in traced))
    trace, _ = call.recorded([np.zeros(shape, kind) for shape, kind in call.types])
    if trace.written:
        raise UsageError(
            f"kernel {call.name!r} writes to its arguments, inside of a function that JAX traces",
            code="TRN131",
            got=", ".join(trace.tensors[p].name for p in trace.written),
            remedy="return a tensor of nl.shared_hbm instead",
        )
    _CALLS.append(call)
    made = dict(zip(fresh(trace), kernel_call.bind(*traced, number=len(_CALLS) - 1)))
    return map_objects(lambda r: _seen(call, made[r.param], r), trace.results, KernelResult)


def _seen(call: _Call, whole: Any, result: KernelResult) -> Any:
    """A result as a look at the tensor that it lies in."""
    if result.strides != row_major(result.shape):
        raise UnsupportedOpError(
            f"kernel {call.name!r} returns a view that is not a run of a tensor's elements",
            code="TRN205",
            got=f"{list(result.shape)}, strides {list(result.strides)}",
            remedy="return the tensor, slice it in JAX",
        )
    if whole.shape == tuple(result.shape):
        return whole
    count = int(np.prod(result.shape))
    return whole.reshape(-1)[result.offset : result.offset + count].reshape(result.shape)


# -- the operation of JAX ------------------------------------------------------------------------------------------

kernel_call = Primitive("trnlab_kernel")
kernel_call.multiple_results = True


def _results(number: int, shapes: Sequence[Any]) -> list[Any]:
    trace, _ = _CALLS[number].recorded([np.zeros(x.shape, x.dtype) for x in shapes])
    held = [trace.tensors[p] for p in fresh(trace)]
    return [jax.ShapeDtypeStruct(b.shape, b.dtype.numpy) for b in held]


@kernel_call.def_abstract_eval
def _abstract(*avals: Any, number: int) -> list[Any]:
    return [jax.core.ShapedArray(s.shape, s.dtype) for s in _results(number, avals)]


@kernel_call.def_impl
def _impl(*arrays: Any, number: int) -> list[Any]:
    return [jax.numpy.asarray(a) for a in _CALLS[number].run([np.asarray(a) for a in arrays])]


def _on_host(*arrays: Any, number: int) -> Any:
    run: Callable[..., Any] = lambda *given: _CALLS[number].run([np.asarray(g) for g in given])  # noqa: E731
    return jax.pure_callback(run, _results(number, arrays), *arrays, vmap_method="sequential")


def _lower(ctx: Any, *operands: Any, number: int) -> Any:
    if not for_chip:
        return mlir.lower_fun(partial(_on_host, number=number), multiple_results=True)(ctx, *operands)
    types = [ir.RankedTensorType.get(a.shape, mlir.dtype_to_ir_type(a.dtype)) for a in ctx.avals_out]
    name, which = ir.StringAttr.get(_TARGET), ir.StringAttr.get(str(number))
    return stablehlo.CustomCallOp(types, list(operands), call_target_name=name, backend_config=which).results


def _batch(arrays: Sequence[Any], dims: Sequence[Any], *, number: int) -> Any:
    """Once for each element."""
    moved = [jax.numpy.moveaxis(a, d, 0) for a, d in zip(arrays, dims) if d is not None]

    def one(mapped: Sequence[Any]) -> Any:
        left = iter(mapped)
        return kernel_call.bind(*(a if d is None else next(left) for a, d in zip(arrays, dims)), number=number)

    found = jax.lax.map(one, moved)
    return found, [0] * len(found)


mlir.register_lowering(kernel_call, _lower)
batching.primitive_batchers[kernel_call] = _batch


# -- into the graph ------------------------------------------------------------------------------------------------


def _custom_call(site: OpSite) -> Any:
    """The op of the graph that a call becomes."""
    call = _CALLS[int(text(site.raw, "backend_config"))]
    examples = [to_host(np.zeros(s, k)) for s, k in call.types]
    trace, ordered = call.recorded(examples)
    numbers = {id(example): i for i, example in enumerate(examples)}
    places = [numbers.get(id(array), -1) for array in ordered]
    operands = [TensorType(shape, dtype(kind.name)) for shape, kind in call.types]
    try:
        made: KernelCallee = callee.callee_of(
            call.name, trace, places, operands, fresh(trace), lambda p: ordered[p].data, call.run
        )
    except callee.NotAnOp as reason:
        raise UnsupportedForm(reason.reason, reason.do) from reason
    return site.written(lambda *values: list(site.b.custom_call(made, *values)), kinds=list(made.results))


TARGETS[_TARGET] = _custom_call
kernel_hooks.register("jax", trace_call)
