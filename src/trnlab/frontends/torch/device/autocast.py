# SPDX-License-Identifier: Apache-2.0
"""`torch.autocast("neuron")`: which operators run in the low precision, which in fp32, which in their widest input's.

The three lists follow PyTorch's rules for its GPUs
(https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference), so that a script behaves as its author knows
it. An operator in no list runs in the types it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trnlab.frontends.torch.device.dispatch import implement, operator
from trnlab.frontends.torch.pytorch.dispatcher import DispatchKey, DispatchKeySet, ExcludedKeys


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LOW_PRECISION = _names("""
    linear matmul mm bmm addmm addbmm baddbmm addmv mv chain_matmul linalg_multi_dot linalg_vecdot einsum tensordot
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution prelu
    scaled_dot_product_attention
""")
FLOAT32 = _names("""
    layer_norm group_norm rms_norm softmax.int log_softmax.int cross_entropy_loss nll_loss nll_loss2d nll_loss_nd
    mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy_with_logits cosine_embedding_loss
    hinge_embedding_loss margin_ranking_loss triplet_margin_loss soft_margin_loss exp expm1 log log10 log2 log1p cosh
    sinh tan acos asin reciprocal rsqrt softplus erfinv logsumexp pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar sum
    sum.dim_IntList prod prod.dim_int cumsum cumprod norm.Scalar norm.ScalarOpt_dim dist cdist cosine_similarity
    renorm
""")
WIDEST = _names("cat stack addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add")

_AUTOCAST_KEY = DispatchKeySet(DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]
_LIBRARIES: list[torch.library.Library] = []


def _castable(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.device.type == "neuron"
        and value.dtype != torch.float64
    )


def _cast(value: Any, kind: torch.dtype) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(v, kind) for v in value)
    return value.to(kind) if _castable(value) else value


def _widest(values: Any) -> torch.dtype:
    """fp32 if any tensor among `values` is, else the low precision."""
    flat = [v for value in values for v in (value if isinstance(value, (list, tuple)) else (value,))]
    kinds = {v.dtype for v in flat if _castable(v)}
    return torch.float32 if torch.float32 in kinds else torch.get_autocast_dtype("neuron")


def _kernel(op: Any, choose: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with ExcludedKeys(_AUTOCAST_KEY):
            kind = choose((*args, *kwargs.values()))
            return op(*_cast(args, kind), **{k: _cast(v, kind) for k, v in kwargs.items()})

    return run


def register() -> None:
    """Install the rules. Called once; bf16 becomes the default low precision of the device."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    rules: tuple[tuple[tuple[str, ...], Callable[[Any], torch.dtype]], ...] = (
        (LOW_PRECISION, lambda values: torch.get_autocast_dtype("neuron")),
        (FLOAT32, lambda values: torch.float32),
        (WIDEST, _widest),
    )
    for names, choose in rules:
        for name in names:
            op = operator(name)
            implement(aten, op, _kernel(op, choose), "AutocastPrivateUse1")
    torch.set_autocast_dtype("neuron", torch.bfloat16)
    _LIBRARIES.extend((everything, aten))
