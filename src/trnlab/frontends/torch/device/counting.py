# SPDX-License-Identifier: Apache-2.0
"""Histograms of integers: PyTorch has them for accelerators, where mixtures of experts count who was chosen, and not
for the host's processor. They are made of operators that have a form on both."""

from __future__ import annotations

import torch
from torch import Tensor


def histogram(x: Tensor, bins: int, low: int, high: int) -> Tensor:
    """How many elements lie in each of `bins` equal parts from low to high; of what there is where those are equal.

    x: integers of any shape. Returns [bins] of its format. The largest value belongs to the last part, what lies
    outside to none, as PyTorch counts on other devices. Raises RuntimeError for no parts and for low above high.
    """
    if bins <= 0:
        raise RuntimeError(f"histc(): bins must be > 0, but got {bins}")
    if high < low:
        raise RuntimeError("histc(): max must be larger than min")
    counts, line = x.new_zeros(bins), x.reshape(-1).to(torch.int64)
    if not line.numel():
        return counts
    ends = (torch.full_like(line[0], low), torch.full_like(line[0], high)) if low != high else _ends(line)
    inside = (line >= ends[0]) & (line <= ends[1])
    part = torch.div((line - ends[0]) * bins, ends[1] - ends[0], rounding_mode="floor").clamp(0, bins - 1)
    return counts.scatter_add(0, part, inside.to(x.dtype))


def _ends(line: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the elements, one around where these are the same."""
    low, high = line.amin(), line.amax()
    same = (low == high).to(line.dtype)
    return low - same, high + same
