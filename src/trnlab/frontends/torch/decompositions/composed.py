# SPDX-License-Identifier: Apache-2.0
"""Operators that PyTorch takes apart nowhere, or not well, written with those that have a lowering.

What each computes is said by PyTorch's documentation and its kernels for the CPU, with which `tools.opdb` compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.decompositions import loss_scales, margins, sampling

_BY_PRODUCTS = 25  # points beyond which PyTorch's distances are made of matrix products
_MOST_DIFFERENCES = 2**22  # of all pairs of points in a gradient, beyond which they are never in memory at once
_TINY = 1e-7  # what PyTorch adds to the norm that it divides by


def decompositions() -> dict[Any, Callable[..., Any]]:
    """By operator."""
    aten = torch.ops.aten
    return {
        aten._cdist_forward.default: distances,
        aten._cdist_backward.default: distances_backward,
        aten._trilinear.default: trilinear,
        aten.addbmm.default: sum_of_products,
        aten.addmv.default: product_with_vector,
        aten.embedding_renorm.default: renormalized,
        **loss_scales.decompositions(),
        **margins.decompositions(),
        aten.grid_sampler_2d.default: sampling.grid_sampler_2d,
        aten.grid_sampler_2d_backward.default: sampling.grid_sampler_2d_backward,
    }


# -- distances between all points of two sets -----------------------------------------------------------------------


def distances(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Distances of x [..., P, M] and y [..., R, M] in the p-norm: [..., P, R].

    compute_mode: 1 for Euclidean distances by matrix products, 2 for none of these, otherwise where a set has more
    than 25 points.
    """
    many = x.shape[-2] > _BY_PRODUCTS or y.shape[-2] > _BY_PRODUCTS
    if p == 2 and compute_mode != 2 and (many or compute_mode == 1):
        squares = x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2)
        return (squares - 2 * (x @ y.mT)).clamp_min(0).sqrt()
    apart = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(x.dtype).sum(-1)
    if p == inf:
        return apart.amax(-1) if x.shape[-1] else apart.sum(-1)
    if p == 1:
        return apart.sum(-1)
    return apart.square().sum(-1).sqrt() if p == 2 else apart.pow(p).sum(-1).pow(1 / p)


def distances_backward(grad: Tensor, x: Tensor, y: Tensor, p: float, found: Tensor) -> Tensor:
    """The gradient of x [..., P, M]; grad and found [..., P, R]. Points that coincide give none."""
    if p == 0 or found.numel() == 0:
        return torch.zeros_like(x)
    share = torch.where(found == 0, 0, grad / found if p == 2 else grad)
    if p == 2 and found.numel() * x.shape[-1] > _MOST_DIFFERENCES:
        return x * share.sum(-1, keepdim=True) - share @ y
    apart, share, found = x.unsqueeze(-2) - y.unsqueeze(-3), share.unsqueeze(-1), found.unsqueeze(-1)
    if p == 2:
        return (share * apart).sum(-2)
    if p == 1:
        return (share * apart.sign()).sum(-2)
    if p == inf:
        return (share * apart.sign() * (apart.abs() == found)).sum(-2)
    steep = torch.where(apart == 0, 0, apart.abs().pow(p - 1) * apart.sign())
    return (share * steep / torch.where(found == 0, 1, found).pow(p - 1)).sum(-2)


# -- products beside a sum ------------------------------------------------------------------------------------------


def sum_of_products(bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * bias + alpha * the sum of x[i] y[i]: one product, whose contraction is all of theirs."""
    batch, rows, depth = x.shape
    flat = x.permute(1, 0, 2).reshape(rows, batch * depth)
    return torch.addmm(bias, flat, y.reshape(batch * depth, y.shape[-1]), beta=beta, alpha=alpha)


def product_with_vector(bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * bias + alpha * x y for a vector y."""
    column = bias.expand(x.shape[0]).unsqueeze(-1)
    return torch.addmm(column, x, y.unsqueeze(-1), beta=beta, alpha=alpha).squeeze(-1)


# -- products of three, and rows of a table -------------------------------------------------------------------------


def trilinear(
    first: Tensor,
    second: Tensor,
    third: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The product of three tensors that lack the dimensions `expand`, each its own, summed over `sumdim`."""
    letters = [chr(ord("a") + d) for d in range(first.ndim + len(expand1))]
    sides = ["".join(a for d, a in enumerate(letters) if d not in gone) for gone in (expand1, expand2, expand3)]
    left = "".join(a for d, a in enumerate(letters) if d not in sumdim)
    return torch.einsum(f"{','.join(sides)}->{left}", first, second, third)


def renormalized(table: Tensor, ids: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """The table [V, E] with the rows that `ids` names scaled down to `max_norm` where theirs is larger."""
    norms = torch.linalg.vector_norm(table, norm_type, 1, keepdim=True)
    uses = torch.zeros(table.shape[0], dtype=torch.float32, device=table.device)
    used = uses.index_add(0, ids.flatten(), torch.ones_like(ids.flatten(), dtype=torch.float32)) > 0
    return torch.where(used[:, None] & (norms > max_norm), table * (max_norm / (norms + _TINY)), table)
