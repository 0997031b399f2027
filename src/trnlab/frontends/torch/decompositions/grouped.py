# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products on `neuron`: what mixtures of experts compute when each expert takes a run of rows.

How many rows belong to each group depends on values, shapes do not. Two operators of the graph know that each row
meets the matrix of its own group alone: `trnlab::grouped_dot`, rows times matrices, and `trnlab::grouped_outer`, for
each group the product of its rows of two matrices. Each is what the other's derivatives are made of. On the host they
are a loop over the groups. In every format; PyTorch's own form for devices takes bfloat16 only.

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
    if is_sharded(x) or is_sharded(y):  # which have rules for PyTorch's operators
        return _of_all_rows(x, y, offs).to(dtype)
    if torch.is_autocast_enabled("neuron"):
        x, y = (v.to(torch.get_autocast_dtype("neuron")) for v in (x, y))
    if x.dim() == 2 and y.dim() == 3:
        return torch.ops.trnlab.grouped_dot(x, y, offs).to(dtype)  # type: ignore[no-any-return]
    if x.dim() == 3:
        return torch.ops.trnlab.grouped_dot(y.mT, x.mT, offs).mT.to(dtype)  # type: ignore[no-any-return]
    return torch.ops.trnlab.grouped_outer(x.mT, y, offs).to(dtype)  # type: ignore[no-any-return]


def _of_all_rows(x: Tensor, y: Tensor, offs: Tensor) -> Tensor:
    """Products of all rows with each group's matrix, those of others hidden."""
    size = x.shape[-1] if x.dim() == y.dim() else x.shape[0] if x.dim() == 2 else y.shape[1]
    place, ends = torch.arange(size, device=offs.device), offs[:, None]
    starts = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    inside = (place >= starts) & (place < ends)  # [G, size]
    if x.dim() == 2 and y.dim() == 3:
        return torch.where(inside[:, :, None], torch.bmm(torch.where(inside[:, :, None], x, 0), y), 0).sum(0)
    if x.dim() == 3:
        return torch.where(inside[:, None, :], torch.bmm(x, torch.where(inside[:, None, :], y, 0)), 0).sum(0)
    return torch.bmm(torch.where(inside[:, None, :], x, 0), torch.where(inside[:, :, None], y, 0))


def _check(x: Tensor, y: Tensor, offs: Tensor | None, bias: Tensor | None) -> None:
    if x.dim() not in (2, 3) or y.dim() not in (2, 3):
        raise RuntimeError(f"grouped_mm takes matrices or batches of them, not {list(x.shape)} and {list(y.shape)}")
    if (offs is None) != (x.dim() == 3 and y.dim() == 3):
        raise RuntimeError("grouped_mm takes offsets if, and only if, an operand has two dimensions")
    if bias is not None:
        raise RuntimeError("grouped_mm takes no bias")


# -- the operators of the graph ------------------------------------------------------------------------------------

_SCHEMAS = (
    "grouped_dot(Tensor x, Tensor w, Tensor offs) -> Tensor",
    "grouped_outer(Tensor x, Tensor y, Tensor offs) -> Tensor",
)


def _parts(offs: Tensor, rows: int) -> list[slice]:
    """The rows of each group."""
    ends = [min(max(end, 0), rows) for end in offs.tolist()]
    return [slice(start, end) for start, end in zip([0, *ends], ends)]


def _dot(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], w.shape[2])
    for group, rows in enumerate(_parts(offs, x.shape[0])):
        out[rows] = x[rows] @ w[group]
    return out


def _outer(x: Tensor, y: Tensor, offs: Tensor) -> Tensor:
    return torch.stack([x[rows].mT @ y[rows] for rows in _parts(offs, x.shape[0])])


def _dot_meta(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], w.shape[2])


def _outer_meta(x: Tensor, y: Tensor, offs: Tensor) -> Tensor:
    return x.new_empty(offs.shape[0], x.shape[1], y.shape[1])


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_dot(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, w, offs = ctx.saved_tensors
    dx = torch.ops.trnlab.grouped_dot(grad, w.mT, offs) if ctx.needs_input_grad[0] else None
    return dx, torch.ops.trnlab.grouped_outer(x, grad, offs) if ctx.needs_input_grad[1] else None, None


def _differentiate_outer(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, y, offs = ctx.saved_tensors
    dx = torch.ops.trnlab.grouped_dot(y, grad.mT, offs) if ctx.needs_input_grad[0] else None
    return dx, torch.ops.trnlab.grouped_dot(x, grad, offs) if ctx.needs_input_grad[1] else None, None


def define(library: torch.library.Library) -> None:
    """Define the two operators in the library `trnlab`. Called once."""
    for schema in _SCHEMAS:
        library.define(schema)
    for name, kernel, meta, differentiate in (
        ("grouped_dot", _dot, _dot_meta, _differentiate_dot),
        ("grouped_outer", _outer, _outer_meta, _differentiate_outer),
    ):
        library.impl(name, kernel, "CPU")
        torch.library.register_fake(f"trnlab::{name}", meta, lib=library)
        torch.library.register_autograd(f"trnlab::{name}", differentiate, setup_context=_save, lib=library)


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
