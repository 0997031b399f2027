# SPDX-License-Identifier: Apache-2.0
"""Attention as one op of the graph, for which the chip has a kernel: `jax.nn.dot_product_attention`, to be asked for.

JAX spells attention out, forward and backward, and the product of queries and keys then goes through HBM. Here it
stays whole. It has a first derivative by rule, none of higher order, and no forward mode: for these there is
`jax.nn.dot_product_attention`, which computes the same.

Letters: B batch, T queries, S keys, N heads, K heads of keys (a divisor of N), H head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from trnlab.frontends.jax.kernels import for_chip
from trnlab.frontends.stablehlo.lowerings.calls import TARGETS
from trnlab.frontends.stablehlo.mlir import text
from trnlab.frontends.stablehlo.registry import OpSite

_HIDDEN = -0.7 * float(jnp.finfo(jnp.float32).max)  # what a mask adds to scores, as in JAX


def dot_product_attention(
    query: Any, key: Any, value: Any, *, mask: Any = None, scale: float | None = None, is_causal: bool = False
) -> Any:
    """softmax(scale * query key^T) value, as `jax.nn.dot_product_attention` with these arguments.

    query [B, T, N, H] or [T, N, H]; key and value [B, S, K, H] or [S, K, H]; mask of truth values, broadcast to
    [B, N, T, S]. Returns query's shape and type. scale: 1 / sqrt(H).
    """
    if query.ndim == 3:
        added = [x[None] for x in (query, key, value)]
        mask = mask if mask is None or mask.ndim == 4 else mask[None]
        return dot_product_attention(*added, mask=mask, scale=scale, is_causal=is_causal)[0]
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
    bias: tuple[Any, ...] = ()
    if mask is not None:  # of a query that sees nothing JAX makes one that sees all alike, and learns nothing
        if is_causal:
            mask, is_causal = jnp.logical_and(mask, jnp.tril(jnp.ones((q.shape[2], k.shape[2]), bool))), False
        q = jnp.where(mask.any(-1, keepdims=True), q, 0.0)
        bias = (jnp.where(mask, 0.0, _HIDDEN).astype(jnp.float32),)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    return jnp.swapaxes(_attention(is_causal, scale, q, k, v, *bias), 1, 2)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(causal: bool, scale: float, q: Any, k: Any, v: Any, *bias: Any) -> Any:
    return forward.bind(q, k, v, *bias, causal=causal, scale=scale)[0]


def _with_residuals(causal: bool, scale: float, q: Any, k: Any, v: Any, *bias: Any) -> Any:
    out, lse = forward.bind(q, k, v, *bias, causal=causal, scale=scale)
    return out, (q, k, v, out, lse, *bias)


def _gradients(causal: bool, scale: float, held: Any, dout: Any) -> Any:
    q, k, v, out, lse, *bias = held
    found = backward.bind(dout, q, k, v, out, lse, *bias, causal=causal, scale=scale)
    return (*found, *(jnp.zeros_like(x) for x in bias))  # a mask learns nothing


_attention.defvjp(_with_residuals, _gradients)


# -- what it means, for the host -----------------------------------------------------------------------------------


def _weights(q: Any, k: Any, bias: Sequence[Any], causal: bool, scale: float) -> Any:
    """Scores and their log-sum-exp; heads of keys repeated."""
    scores = jnp.einsum("bntd,bnsd->bnts", q, _repeated(k, q), preferred_element_type=jnp.float32) * scale
    for extra in bias:
        scores = scores + extra
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return scores, jax.nn.logsumexp(scores, axis=-1)


def _repeated(k: Any, q: Any) -> Any:
    return jnp.repeat(k, q.shape[1] // k.shape[1], axis=1).astype(jnp.float32)


def _forward(q: Any, k: Any, v: Any, *bias: Any, causal: bool, scale: float) -> list[Any]:
    scores, lse = _weights(q.astype(jnp.float32), k, bias, causal, scale)
    out = jnp.einsum("bnts,bnsd->bntd", jax.nn.softmax(scores, axis=-1), _repeated(v, q))
    return [out.astype(q.dtype), lse]


def _backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *bias: Any, causal: bool, scale: float
) -> list[Any]:
    def whole(q: Any, k: Any, v: Any) -> Any:
        return _forward(q, k, v, *bias, causal=causal, scale=scale)[0]

    return list(jax.vjp(whole, q, k, v)[1](dout))


# -- the operations of JAX -----------------------------------------------------------------------------------------


def _primitive(name: str, meaning: Callable[..., list[Any]], results: Callable[..., list[Any]]) -> Any:
    made = Primitive(f"trnlab_{name}")
    made.multiple_results = True
    made.def_impl(jax.jit(meaning, static_argnames=("causal", "scale")))
    made.def_abstract_eval(lambda *avals, **_: results(*avals))

    def lower(ctx: Any, *operands: Any, causal: bool, scale: float) -> Any:
        if not for_chip:
            on_host = partial(meaning, causal=causal, scale=scale)
            return mlir.lower_fun(on_host, multiple_results=True)(ctx, *operands)
        types = [ir.RankedTensorType.get(a.shape, mlir.dtype_to_ir_type(a.dtype)) for a in ctx.avals_out]
        target, how = ir.StringAttr.get(f"trnlab.{name}"), ir.StringAttr.get(f"{int(causal)} {scale!r}")
        return stablehlo.CustomCallOp(types, list(operands), call_target_name=target, backend_config=how).results

    mlir.register_lowering(made, lower)
    batching.primitive_batchers[made] = partial(_batched, made)
    TARGETS[f"trnlab.{name}"] = partial(_op, f"trn.{name}")
    return made


def _batched(primitive: Any, arrays: Sequence[Any], dims: Sequence[Any], **how: Any) -> Any:
    """One more dimension of the batch, joined with it."""
    size = next(a.shape[d] for a, d in zip(arrays, dims) if d is not None)
    moved = [
        jnp.broadcast_to(a, (size, *a.shape)) if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(arrays, dims)
    ]
    batch = max(m.shape[1] for m in moved)  # a mask may have one for all
    moved = [jnp.broadcast_to(m, (size, batch, *m.shape[2:])) for m in moved]
    found = primitive.bind(*(m.reshape(-1, *m.shape[2:]) for m in moved), **how)
    return [f.reshape(size, batch, *f.shape[1:]) for f in found], [0] * len(found)


def _op(name: str, site: OpSite) -> Any:
    """The op of the graph."""
    causal, scale = text(site.raw, "backend_config").split()
    attrs = {"causal": causal == "1", "scale": float(scale)}
    return site.written(lambda *values: list(site.b.append(name, values, dict(attrs)).results))


def _as(*likes: Any) -> list[Any]:
    return [jax.core.ShapedArray(x.shape, x.dtype) for x in likes]


forward = _primitive(
    "attention", _forward, lambda q, *_: [*_as(q), jax.core.ShapedArray(q.shape[:3], jnp.dtype(jnp.float32))]
)
backward = _primitive("attention_backward", _backward, lambda dout, q, k, v, *_: _as(q, k, v))
