# SPDX-License-Identifier: Apache-2.0
"""What an operator of PyTorch gives in float64 on the host, and how far rounding may move that.

Operands come as float64 tensors of the CPU whatever their format on the chip; integers and bools stay what they are.
PyTorch's own kernels compute, so that nothing of ours is compared with itself. Letters: as in `composites`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from trnlab.frontends.torch.pytorch import pytree
from trnlab.verify.bounds import ATTENTION, COMPOSITE, FUNCTION, PRODUCT, SUM, TERMS, OperatorBound, roundoff

FEW = 16  # elements, of which no mean is taken
SEEDS = 4  # of the changes with which the sensitivity of a composite is measured
_PREFIX = "aten._foreach_"
_LEFT_OUT = ("device", "pin_memory", "layout")


def wide(value: Any) -> Any:
    """A tensor of floats in float64, of complex numbers in complex128; anything else as it is, lists and tuples
    element by element."""
    if isinstance(value, Tensor):
        wider = torch.complex128 if value.is_complex() else torch.float64
        return value.to(wider) if has_fractions(value) else value
    if isinstance(value, list | tuple):
        return type(value)(wide(v) for v in value)
    return value


def has_fractions(x: Tensor) -> bool:
    """Whether the elements are floats, or pairs of them."""
    return x.is_floating_point() or x.is_complex()


def in_parts(x: Tensor) -> Tensor:
    """Complex numbers as float64 [..., 2], as they lie on the chip; other tensors as they are."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def bf16(x: Tensor) -> Tensor:
    """As the PE array reads a number: rounded to bfloat16, held in float64."""
    if x.is_complex():
        return torch.view_as_complex(bf16(in_parts(x)))
    return x.float().bfloat16().double() if x.is_floating_point() else x


class ReferenceCall:
    """One operator with its operands: FX nodes are looked up in `values`. `mask`: what dropout keeps."""

    def __init__(self, node: fx.Node, values: Mapping[fx.Node, Any], mask: Tensor | None = None) -> None:
        self.node, self.name, self.mask = node, str(node.target), mask
        self.args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n])
        self.kwargs = {k: v for k, v in kwargs.items() if k not in _LEFT_OUT}

    @property
    def tensors(self) -> list[Tensor]:
        """The operands that are tensors of floats, or of complex numbers."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [t for t in leaves if isinstance(t, Tensor) and has_fractions(t)]

    def result(self, change: Callable[[Tensor], Tensor] | None = None) -> Any:
        """The operator's result in float64, on operands that `change` has changed."""
        args, kwargs = self.args, self.kwargs
        if change is not None:
            args, kwargs = pytree.tree_map_only(
                Tensor, lambda t: change(t) if has_fractions(t) else t, (args, kwargs)
            )
        with torch.no_grad():
            if self.mask is not None:
                return args[0] * self.mask / (1 - args[1]), self.mask
            return wide(_evaluate(self.node, self.name, list(args), dict(kwargs)))


def _evaluate(node: fx.Node, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    special = _SPECIAL.get(name)
    if special is not None:
        return special(node, *args, **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]


# -- operators whose own kernels do not take float64, or would round ------------------------------------------------


def _softmax(function: Any) -> Callable[..., Any]:
    return lambda node, x, dim, half_to_float: function(x, dim, False)


def _softmax_backward(function: Any) -> Callable[..., Any]:
    return lambda node, grad, y, dim, kind: function(grad, y, dim, torch.float64)


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float) -> Tensor:
    scores = (q @ _heads(k, q).transpose(-2, -1)) * scale
    scores = scores if bias is None else scores + bias
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    return scores


def _heads(x: Tensor, like: Tensor) -> Tensor:
    return x if x.shape[1] == like.shape[1] else x.repeat_interleave(like.shape[1] // x.shape[1], 1)


def _attention(
    node: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    scores = _scores(q, k, bias, causal, scale)
    lse = torch.logsumexp(scores, -1)
    return torch.softmax(scores, -1) @ _heads(v, q), lse


def _attention_backward(node: Any, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _attention_bias_backward(node, *given)[:3]


def _attention_bias_backward(
    node: Any,
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weights = torch.exp(_scores(q, k, bias, causal, scale) - lse.unsqueeze(-1))
    unscaled = weights * (dout @ _heads(v, q).transpose(-2, -1) - (dout * out).sum(-1, keepdim=True))
    dbias = unscaled if bias is None else unscaled.sum_to_size(bias.shape)
    slopes = unscaled * scale
    dk, dv = slopes.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ dout
    groups = (k.shape[1], q.shape[1] // k.shape[1])
    return slopes @ _heads(k, q), dk.unflatten(1, groups).sum(2), dv.unflatten(1, groups).sum(2), dbias


def _kernel(node: fx.Node, inputs: Sequence[Tensor], call: int) -> Any:
    """A kernel runs by itself, on operands in their own formats: what it gives inside of the program must be that."""
    kinds = [n.meta["val"].dtype for n in node.args[0]]  # type: ignore[union-attr]
    return torch.ops.trnlab.nki([x.to(kind) for x, kind in zip(inputs, kinds)], call)


def _wide_product(function: Any) -> Callable[..., Any]:
    return lambda node, x, y, kind: function(x, y)


_ATEN = torch.ops.aten
_SPECIAL: dict[str, Callable[..., Any]] = {
    "aten._softmax.default": _softmax(_ATEN._softmax.default),
    "aten._log_softmax.default": _softmax(_ATEN._log_softmax.default),
    "aten._softmax_backward_data.default": _softmax_backward(_ATEN._softmax_backward_data.default),
    "aten._log_softmax_backward_data.default": _softmax_backward(_ATEN._log_softmax_backward_data.default),
    "aten.mm.dtype": _wide_product(_ATEN.mm.default),
    "aten.bmm.dtype": _wide_product(_ATEN.bmm.default),
    "trnlab.attention.default": _attention,
    "trnlab.attention_backward.default": _attention_backward,
    "trnlab.attention_bias_backward.default": _attention_bias_backward,
    "trnlab.nki.default": _kernel,
}


# -- how far rounding may move a result -----------------------------------------------------------------------------


def scale_of(call: ReferenceCall, kind: OperatorBound, result: Any, precision: str) -> tuple[Any, int]:
    """What the bound of a result is proportional to, see `verify.bounds`, and the number of terms of its sums."""
    if kind is SUM:
        return _of_magnitudes(call), _terms_of_sum(call, result)
    if kind is PRODUCT:
        return _of_magnitudes(call), _contracted(call)
    if kind is TERMS:
        return _terms(call), 1
    if kind in (COMPOSITE, ATTENTION):
        u = 2 * roundoff("bfloat16") if kind is ATTENTION and precision == "bf16" else roundoff("float32")
        return _response(call, result, u), _longest(call, result) if u == roundoff("float32") else 1
    if kind is FUNCTION:
        return _of_function(call, result), 1
    return _magnitude(result), 1


def _magnitude(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_magnitude(v) for v in value)
    return value.abs() if isinstance(value, Tensor) and has_fractions(value) else value


def _of_magnitudes(call: ReferenceCall) -> Any:
    """The same operator on magnitudes: the sum of what its result is a sum of."""
    return _magnitude(call.result(torch.abs))


def _of_function(call: ReferenceCall, result: Any) -> Any:
    if not isinstance(result, Tensor):
        return _magnitude(result)
    if call.name.split(".")[1] in ("gelu", "silu"):
        return torch.maximum(result.abs(), call.tensors[0].abs())
    if call.name.split(".")[1] == "pow":  # e^(y log x): the exponent's own error is magnified by its size
        logarithm = torch.where(result.abs() > 0, result.abs().log().abs(), 0.0)
        return result.abs() * (1 + logarithm)
    return result.abs()


def _terms(call: ReferenceCall) -> Any:
    """The sum of the magnitudes of what is added up."""
    name = call.name.removeprefix(_PREFIX).removeprefix("aten.").split(".")[0]
    if call.name.startswith(_PREFIX):
        lists = [a if isinstance(a, list | tuple) else [a] * len(call.args[0]) for a in call.args]
        return [_few(name, list(args), call.kwargs) for args in zip(*lists)]
    return _few(name, list(call.args), call.kwargs)


def _few(name: str, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
    x, y, *rest = (a.abs() if isinstance(a, Tensor) else abs(a) for a in args)
    factor = abs(kwargs.get("alpha", kwargs.get("value", 1)))
    if name == "addcmul":
        return x + factor * y * rest[0]
    if name == "addcdiv":
        return x + factor * y / rest[0]
    if name == "lerp":
        return x * (1 + rest[0]) + y * rest[0]
    return x * factor + y if name == "rsub" else x + factor * y


def _terms_of_sum(call: ReferenceCall, result: Any) -> int:
    if call.name.startswith("aten.cumsum"):
        return int(call.args[0].shape[call.args[1]]) if call.args[0].dim() else 1
    source = max((t.numel() for t in call.tensors), default=1)
    made = min((t.numel() for t in pytree.tree_leaves(result) if isinstance(t, Tensor)), default=1)
    if call.name.split(".")[1] in ("embedding_dense_backward", "index_add", "scatter_add", "index_put"):
        indices = [t for t in pytree.tree_leaves(call.args) if isinstance(t, Tensor) and not t.is_floating_point()]
        return int(max([t.numel() for t in indices] or [1]))
    return int(max(source // max(made, 1), 2))


def _contracted(call: ReferenceCall) -> int:
    """The terms of one element of a product; of the gradients of a convolution, of the one that has most."""
    name = call.name.split(".")[1]
    if name == "convolution":
        return _of_window(call.args[1], *call.args[6:9:2])
    if name == "convolution_backward":
        gradient, _, weight = call.args[:3]
        return max(_of_window(weight, not call.args[7], call.args[9]), gradient.numel() // max(gradient.shape[1], 1))
    left = call.args[1] if name in ("addmm", "baddbmm") else call.args[0]
    left = left.mT if name == "grouped_outer" else left
    return int(left.shape[-1]) if isinstance(left, Tensor) and left.dim() else 1


def _of_window(weight: Tensor, transposed: bool, groups: int) -> int:
    """Terms of one element of a convolution: channels of a group by elements of the window."""
    made = weight.shape[1] * groups if transposed else weight.shape[0]
    return max(weight.numel() // max(made, 1), 1)


def _longest(call: ReferenceCall, result: Any) -> int:
    """The most terms that sums within a composite may have."""
    dims = max((n for t in call.tensors for n in t.shape), default=1)
    return max(dims, _terms_of_sum(call, result)) if isinstance(result, list | tuple) else dims


def _response(call: ReferenceCall, result: Any, u: float) -> Any:
    """How far each element of the result moves when all operands change by up to u, in units of u(float32).

    The root mean square of several changes, and a quarter of its mean over the last dimension (or over everything
    where that is short): an element that happens to stay where it is would else have no room at all.
    """
    generator = torch.Generator().manual_seed(0)
    unit = roundoff("float32")

    def changed(t: Tensor) -> Tensor:
        return t * (1 + u * (2 * torch.rand(t.shape, generator=generator, dtype=torch.float64) - 1))

    squares = _zip(lambda r: torch.zeros_like(r.abs()), result)
    for _ in range(SEEDS):
        squares = _zip(
            lambda s, r, c: s + torch.nan_to_num((c - r).abs(), 0.0, 0.0, 0.0) ** 2,
            squares,
            result,
            call.result(changed),
        )
    return _zip(lambda s, r: (r.abs() * u + _smoothed((s / SEEDS).sqrt())) / unit, squares, result)


def _smoothed(moved: Tensor) -> Tensor:
    mean = moved.mean(-1, keepdim=True) if moved.dim() and moved.shape[-1] >= FEW else moved.mean()
    return moved + 0.25 * mean


def _zip(function: Callable[..., Any], *values: Any) -> Any:
    """`function` on tensors of floats that stand at the same place of tuples, or of nothing."""
    if isinstance(values[0], list | tuple):
        return [_zip(function, *parts) for parts in zip(*values)]
    floats = all(isinstance(v, Tensor) and has_fractions(v) for v in values)
    return function(*values) if floats else values[0]
