# SPDX-License-Identifier: Apache-2.0
"""Attention of DTensors: in parts of the batch or of the heads, and as a ring under `context_parallel`.

PyTorch's ring (`torch.distributed.tensor.experimental`) is written for any attention that returns the logarithms of
its sums; here it is given `trnlab::attention`. DTensor learns of both the first time that it meets that operator.
"""

from __future__ import annotations

from typing import Any

import torch

from trnlab.errors import UnsupportedOpError

BATCH, HEADS, TOKENS = 0, 1, 2
_installed = False


def install() -> None:
    """Let DTensor know how attention is placed. Called whenever attention meets a DTensor."""
    global _installed
    if _installed:
        return
    _installed = True
    from trnlab.frontends.torch.pytorch import distributed_tensors, rings

    forward, backward = torch.ops.trnlab.attention.default, torch.ops.trnlab.attention_backward.default
    rings.register_sharding(forward)(_placements)
    rings.register_sharding(backward)(_backward_placements)
    handlers = {forward: _ring, backward: _ring_backward}
    rings.handlers.update(handlers)
    active = distributed_tensors.handlers()
    if active is not rings.handlers_outside:  # a context that was entered before
        active.update(handlers)
    # A step that is captured goes backward when its loss function, and a context in there, is left.
    rings.handlers_outside[backward] = _ring_backward


def _placements(q: Any, k: Any, v: Any, bias: Any, causal: bool, scale: float) -> Any:
    return [([at] * 2, [at, at, at, _of_bias(bias, at), None, None]) for at in _ways(k)]


def _backward_placements(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, bias: Any, causal: bool, scale: float
) -> Any:
    return [([at] * 3, [*([at] * 6), _of_bias(bias, at), None, None]) for at in _ways(k)]


def _ways(k: Any) -> list[Any]:
    """Whole, or in parts of the batch or of the heads, where ranks share the key heads evenly."""
    from torch.distributed.tensor import Replicate, Shard

    even = k.shape[HEADS] % k.mesh.size() == 0
    return [Replicate(), Shard(BATCH), *([Shard(HEADS)] if even else [])]


def _of_bias(bias: Any, at: Any) -> Any:
    from torch.distributed.tensor import Replicate

    if bias is None or at.is_replicate() or bias.shape[at.dim] == 1:
        return None if bias is None else Replicate()
    return at


def _ring(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`trnlab::attention` in a context that shares out the tokens."""
    from trnlab.frontends.torch.pytorch import rings

    q, k, v, bias, causal, scale = _all(op, args, kwargs)
    if not _in_parts_of_tokens(q, k, v):
        return _elsewise(op, args, kwargs)
    _refuse_bias(bias)
    given = [x.to_local() for x in (q, k, v)]

    def block(q: Any, k: Any, v: Any, is_causal: bool, **_: Any) -> Any:
        return op(q, k, v, None, is_causal, scale)

    results = rings.forward(q.device_mesh.get_group(), TOKENS, block, *given, is_causal=causal)
    return tuple(_like(result, q) for result in results)


def _ring_backward(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Its derivative: what went round has its result in parts of the tokens, too; else they were gathered."""
    from trnlab.frontends.torch.pytorch import rings

    dout, q, k, v, out, lse, bias, causal, scale = _all(op, args, kwargs)
    if not _in_parts_of_tokens(q, k, v, out):
        return _elsewise(op, args, kwargs)
    _refuse_bias(bias)
    dout, *given = (x.to_local() for x in (dout, q, k, v, out, lse))

    def block(query: Any, key: Any, value: Any, out: Any, logsumexp: Any, is_causal: bool, dout: Any) -> Any:
        return op(dout, query, key, value, out, logsumexp, None, is_causal, scale)

    results = rings.backward(q.device_mesh.get_group(), TOKENS, block, dout, "dout", *given, is_causal=causal)
    return tuple(_like(result, x) for result, x in zip(results, (q, k, v)))


def _all(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    names = [argument.name for argument in op._schema.arguments]
    return [*args, *(kwargs[name] for name in names[len(args) :])]


def _in_parts_of_tokens(*tensors: Any) -> bool:
    from torch.distributed.tensor import DTensor, Shard

    return all(isinstance(x, DTensor) and x.placements == (Shard(TOKENS),) for x in tensors)


def _elsewise(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As outside of the context: by the placements above."""
    from trnlab.frontends.torch.pytorch import distributed_tensors

    dispatcher = distributed_tensors.dispatcher()
    info = dispatcher.unwrap_to_op_info(op, args, kwargs)
    dispatcher.sharding_propagator.propagate(info)
    results = distributed_tensors.local_results(op, args, info)
    return dispatcher.wrap(results, info.output_sharding.output_spec)


def _like(part: Any, placed: Any) -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(part, placed.device_mesh, placed.placements, run_check=False)


def _refuse_bias(bias: Any) -> None:
    if bias is not None:
        raise _no_ring(f"a mask {list(bias.shape)}")


def refuse_in_a_ring(query: Any) -> None:
    """Attention that is written out knows nothing of the order that tokens have under `context_parallel`.

    Raises UnsupportedOpError (TRN285) there.
    """
    from trnlab.frontends.torch.pytorch import distributed_tensors

    if torch.ops.trnlab.attention.default in distributed_tensors.handlers() and _in_parts_of_tokens(query):
        raise _no_ring("dropout, a mask that is learned, or values of another size than queries")


def _no_ring(got: str) -> UnsupportedOpError:
    return UnsupportedOpError(
        "this attention has no ring: its tokens are on several ranks, in another order",
        code="TRN285",
        got=got,
        limit="under context_parallel: is_causal=True or no mask, no dropout, values as large as queries",
        remedy="leave the mask and the dropout of attention out, or share out the batch or the heads instead",
    )
