# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products on `neuron`: what mixtures of experts compute when each expert takes a run of rows.

How many rows belong to each group depends on values, shapes do not: each group's product is made of all rows, those
of others hidden. In every format (PyTorch's own form for devices takes bfloat16 only), with derivatives by PyTorch.
`trnlab::group_products` is such products, by its name: the model asks for one in G of what they compute.

Shape letters: G groups, M rows, K summed, N columns; `offs` [G] holds where each group ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.parallel.sharded import is_sharded


def grouped_mm(
    x: Tensor, y: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """The kernel of `F.grouped_mm`. Rows, columns or terms behind the last group belong to none, and give zero.

    [M, K] by [G, K, N] gives [M, N]: groups of rows. [G, M, K] by [K, N] gives [M, N]: groups of columns. [M, K] by
    [K, N] gives [G, M, N]: groups of terms. [G, M, K] by [G, K, N] is a batch. Raises RuntimeError for other shapes.
    """
    _check(x, y, offs, bias)
    dtype = out_dtype or x.dtype
    if offs is None:
        return torch.bmm(x, y).to(dtype)
    size = x.shape[-1] if x.dim() == y.dim() else x.shape[0] if x.dim() == 2 else y.shape[1]
    inside = _members(offs, size)  # [G, size]
    if x.dim() == 2 and y.dim() == 3:
        parts = torch.where(inside[:, :, None], _products(torch.where(inside[:, :, None], x, 0), y), 0)
        return parts.sum(0).to(dtype)
    if x.dim() == 3:
        parts = torch.where(inside[:, None, :], _products(x, torch.where(inside[:, None, :], y, 0)), 0)
        return parts.sum(0).to(dtype)
    return _products(torch.where(inside[:, None, :], x, 0), torch.where(inside[:, :, None], y, 0)).to(dtype)


def _products(x: Tensor, y: Tensor) -> Tensor:
    """[G, M, K] by [G, K, N], in the format of `bmm` where a region of autocast chooses one."""
    if is_sharded(x) or is_sharded(y):  # which have rules for PyTorch's operators
        return torch.bmm(x, y)
    if torch.is_autocast_enabled("neuron"):
        x, y = (v.to(torch.get_autocast_dtype("neuron")) for v in (x, y))
    result: Tensor = torch.ops.trnlab.group_products(x, y)
    return result


def _members(offs: Tensor, size: int) -> Tensor:
    """bool [G, size]: which of `size` places lie in each group."""
    place = torch.arange(size, device=offs.device)
    ends = offs[:, None]
    starts = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    return (place >= starts) & (place < ends)


def _check(x: Tensor, y: Tensor, offs: Tensor | None, bias: Tensor | None) -> None:
    if x.dim() not in (2, 3) or y.dim() not in (2, 3):
        raise RuntimeError(f"grouped_mm takes matrices or batches of them, not {list(x.shape)} and {list(y.shape)}")
    if (offs is None) != (x.dim() == 3 and y.dim() == 3):
        raise RuntimeError("grouped_mm takes offsets if, and only if, an operand has two dimensions")
    if bias is not None:
        raise RuntimeError("grouped_mm takes no bias")


# -- the operator that transformers puts in its place where PyTorch's refuses the format -----------------------------


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions of transformers' own operators, by operator; none before it is imported."""
    known = (("grouped_mm_fallback", grouped_mm), ("grouped_mm_fallback_backward", _fallback_backward))
    package = torch.ops.transformers
    table: dict[Any, Callable[..., Any]] = {}
    for name, how in known:
        if hasattr(package, name):
            table[getattr(package, name).default] = how
    return table


def _fallback_backward(x: Tensor, y: Tensor, offs: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return grouped_mm(grad, y.mT, offs), grouped_mm(x.mT, grad, offs)


# -- the operator of the products -----------------------------------------------------------------------------------


def define_products(library: torch.library.Library) -> None:
    """Define `trnlab::group_products`, in a library of that name."""
    library.define("group_products(Tensor x, Tensor y) -> Tensor")
    library.impl("group_products", torch.bmm, "CPU")
    torch.library.register_fake("trnlab::group_products", torch.bmm, lib=library)
    torch.library.register_autograd("trnlab::group_products", _differentiate, setup_context=_save, lib=library)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    (x, y), products = ctx.saved_tensors, torch.ops.trnlab.group_products
    of_x, of_y = ctx.needs_input_grad
    return products(grad, y.mT) if of_x else None, products(x.mT, grad) if of_y else None
