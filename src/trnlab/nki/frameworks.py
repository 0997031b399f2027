# SPDX-License-Identifier: Apache-2.0
"""Frameworks that trace: where the call of a kernel goes when its arguments stand for data that is not there yet.

A framework's adapter adds a taker, which looks at a call and makes an operation of the framework out of it, or leaves
it alone. JAX's is here, PyTorch's in `frontends.torch.kernels`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from trnlab.errors import UsageError

if TYPE_CHECKING:
    from trnlab.nki.kernel import Kernel

LEFT = object()  # what a taker returns that leaves a call alone
Taker = Callable[["Kernel", tuple[Any, ...], dict[str, Any]], Any]


def leaves(value: Any) -> Iterator[Any]:
    """What is inside lists, tuples and dicts."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def take_jax(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Inside of jax.jit and its relatives: a callback to the host, with results as the recorded kernel says.

    Raises UsageError for a kernel that writes to its arguments, which no function of JAX may do.
    """
    jax = sys.modules.get("jax")
    if jax is None or not any(isinstance(x, jax.core.Tracer) for x in leaves((args, kwargs))):
        return LEFT
    flat, tree = jax.tree.flatten((args, kwargs))
    traced = [i for i, x in enumerate(flat) if isinstance(x, jax.Array)]
    examples = list(flat)
    for i in traced:
        examples[i] = np.zeros(flat[i].shape, flat[i].dtype)
    args, kwargs = jax.tree.unflatten(tree, examples)
    plan = kernel.results_of(*args, **kwargs)
    if plan.written:
        raise UsageError(
            f"kernel {kernel.function.__name__!r} writes to its arguments, inside of a function that JAX traces",
            code="TRN131", got=", ".join(plan.written), remedy="return a tensor of nl.shared_hbm instead",
        )  # fmt: skip

    def run(*arrays: Any) -> Any:
        given = list(flat)
        for i, array in zip(traced, arrays):
            given[i] = np.asarray(array)
        args, kwargs = jax.tree.unflatten(tree, given)
        return kernel(*args, **kwargs)

    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), plan.results)
    return jax.pure_callback(run, shapes, *(flat[i] for i in traced), vmap_method="sequential")


def meet_torch(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The first call with tensors loads PyTorch's adapter, which lies above this package and so is known by name; it
    puts its own taker in the place of this one."""
    torch = sys.modules.get("torch")
    if torch is None or not any(isinstance(x, torch.Tensor) for x in leaves((args, kwargs))):
        return LEFT
    return importlib.import_module("trnlab.frontends.torch.kernels").take(kernel, args, kwargs)


LAUNCHERS: list[Callable[[Kernel, Any], Any]] = []  # asked before a kernel is put on a grid, in the same way
TAKERS: list[Taker] = [meet_torch, take_jax]
