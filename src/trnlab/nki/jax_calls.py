# SPDX-License-Identifier: Apache-2.0
"""Calls of kernels inside of functions that JAX traces. JAX is not imported here: the caller has done that."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from trnlab import kernel_hooks
from trnlab.errors import UsageError
from trnlab.kernel_hooks import NOT_HANDLED
from trnlab.nki.tracing.arguments import iter_leaves


def trace_call(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Inside of jax.jit and its relatives: a callback to the host, with results as the recorded kernel says.

    Raises UsageError for a kernel that writes to its arguments, which no function of JAX may do.
    """
    jax = sys.modules.get("jax")
    if jax is None or not any(isinstance(x, jax.core.Tracer) for x in iter_leaves((args, kwargs))):
        return NOT_HANDLED
    flat, tree = jax.tree.flatten((args, kwargs))
    traced = [i for i, x in enumerate(flat) if isinstance(x, jax.Array)]
    examples = list(flat)
    for i in traced:
        examples[i] = np.zeros(flat[i].shape, flat[i].dtype)
    args, kwargs = jax.tree.unflatten(tree, examples)
    signature = kernel.results_of(*args, **kwargs)
    if signature.written:
        raise UsageError(
            f"kernel {kernel.function.__name__!r} writes to its arguments, where JAX traces: not in trnlab",
            code="TRN131",
            got=", ".join(signature.written),
            remedy="return a tensor of nl.shared_hbm instead",
        )

    def run(*arrays: Any) -> Any:
        given = list(flat)
        for i, array in zip(traced, arrays):
            given[i] = np.asarray(array)
        args, kwargs = jax.tree.unflatten(tree, given)
        return kernel(*args, **kwargs)

    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), signature.results)
    return jax.pure_callback(run, shapes, *(flat[i] for i in traced), vmap_method="sequential")


kernel_hooks.register("jax", trace_call)
