# SPDX-License-Identifier: Apache-2.0
"""Pictures sampled at the points of a grid, with their gradients.

A pixel's channels are a row of a table, which the chip's transfers gather by index; PyTorch's own decomposition takes
element by element. Letters: N pictures, C channels, H and W their height and width, h and w those of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trnlab.frontends.torch.pytorch.splitting import decomposition_table

BILINEAR, NEAREST = 0, 1  # interpolation_mode; 2 is bicubic
ZEROS, BORDER = 0, 1  # padding_mode; 2 reflects


@dataclass(frozen=True)
class Corner:
    """One of the pixels that samples are made of."""

    ids: Tensor  # rows of the table, [N * h * w]
    # across, down: the share of the pixel in a sample by either direction, [N, h, w]; 0 of what lies in no
    # picture, NaN of a point that is nowhere
    across: Tensor
    down: Tensor
    # right, below: on which side of the sample
    right: int
    below: int


def grid_sampler_2d(
    pictures: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """Samples [N, C, h, w] of pictures [N, C, H, W] at points [N, h, w, 2], which are (x, y) in -1 to 1."""
    if interpolation_mode not in (BILINEAR, NEAREST):
        split = decomposition_table[torch.ops.aten.grid_sampler_2d.default]
        return split(pictures, grid, interpolation_mode, padding_mode, align_corners)
    (x, _), (y, _) = _places(pictures, grid, padding_mode, align_corners)
    table = _table(pictures)
    total: Tensor | None = None
    for corner in _corners(x, y, pictures, interpolation_mode):
        share = (corner.across * corner.down).flatten().unsqueeze(1)
        part = table.index_select(0, corner.ids) * share
        total = part if total is None else total + part
    assert total is not None
    return total.unflatten(0, x.shape).permute(0, 3, 1, 2).contiguous().to(pictures.dtype)


def grid_sampler_2d_backward(
    grad: Tensor,
    pictures: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:
    """Gradients of the pictures, where the mask wants them, and of the grid; grad [N, C, h, w].

    NotImplemented, which leaves the operator whole, of bicubic samples. The nearest do not change with the grid.
    """
    if interpolation_mode not in (BILINEAR, NEAREST):
        return NotImplemented
    (x, dx), (y, dy) = _places(pictures, grid, padding_mode, align_corners)
    table, rows = _table(pictures), _table(grad)
    of_table, of_x, of_y = torch.zeros_like(table), torch.zeros_like(x), torch.zeros_like(y)
    for corner in _corners(x, y, pictures, interpolation_mode):
        if output_mask[0]:
            share = (corner.across * corner.down).flatten().unsqueeze(1)
            of_table = of_table.index_add(0, corner.ids, rows * share)
        if output_mask[1] and interpolation_mode != NEAREST:
            value = (table.index_select(0, corner.ids) * rows).sum(1).view_as(x)
            of_x = of_x + value * corner.down * (2 * corner.right - 1)
            of_y = of_y + value * corner.across * (2 * corner.below - 1)
    count, _, height, width = pictures.shape
    of_pictures = of_table.view(count, height, width, -1).permute(0, 3, 1, 2).contiguous().to(pictures.dtype)
    return of_pictures if output_mask[0] else None, torch.stack((of_x * dx, of_y * dy), -1).to(grid.dtype)


def _table(pictures: Tensor) -> Tensor:
    """Pixels of [N, C, H, W] by rows [N * H * W, C], in fp32."""
    return pictures.to(torch.float32).permute(0, 2, 3, 1).flatten(0, 2)


def _corners(x: Tensor, y: Tensor, pictures: Tensor, interpolation_mode: int) -> Iterator[Corner]:
    """The pixels around samples at x and y [N, h, w], each of them for all samples."""
    count, _, height, width = pictures.shape
    first = torch.arange(count, device=x.device).view(-1, 1, 1) * (height * width)
    nearest = interpolation_mode == NEAREST
    left, above = (x.round(), y.round()) if nearest else (x.floor(), y.floor())
    for below, right in [(0, 0)] if nearest else [(0, 0), (0, 1), (1, 0), (1, 1)]:
        col, row = left + right, above + below
        inside = (col >= 0) & (col < width) & (row >= 0) & (row < height)
        at = torch.where(inside, row * width + col, 0).to(torch.int64) + first
        across, down = (torch.ones_like(x),) * 2 if nearest else (1 - (x - col).abs(), 1 - (y - row).abs())
        yield Corner(at.flatten(), across * inside, down * inside, right, below)


def _places(
    pictures: Tensor, grid: Tensor, padding_mode: int, align_corners: bool
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Across and down, of each point: where it lies among the pixels, and how fast it moves there."""
    height, width = pictures.shape[-2:]
    across, down = grid.to(torch.float32).unbind(-1)
    return _place(across, width, padding_mode, align_corners), _place(down, height, padding_mode, align_corners)


def _place(at: Tensor, size: int, padding_mode: int, align_corners: bool) -> tuple[Tensor, Tensor]:
    """Where a coordinate in -1 to 1 lies among `size` pixels, and how fast it moves there."""
    half = (size - 1) / 2 if align_corners else size / 2
    place, speed = (at + 1) * half - (0 if align_corners else 0.5), torch.full_like(at, half)
    if padding_mode == ZEROS:
        return place, speed
    if padding_mode != BORDER:
        low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
        place, turned = _reflected(place, low, span)
        speed = speed * turned
    outside = (place <= 0) | (place >= size - 1)
    return place.clamp(0, size - 1), torch.where(outside, 0, speed)


def _reflected(place: Tensor, low: float, span: float) -> tuple[Tensor, Tensor]:
    """Thrown back at `low` and at `low + span` until it lies between, and 1 or -1: the way that it moves then."""
    if span == 0:
        return torch.zeros_like(place), torch.zeros_like(place)
    away = place - low
    sign = torch.where(away < 0, -1.0, 1.0)
    away = away.abs()
    turns = (away / span).floor()
    rest = away - turns * span
    even = torch.remainder(turns, 2) == 0
    return torch.where(even, rest + low, span - rest + low), torch.where(even, sign, -sign)
