# SPDX-License-Identifier: Apache-2.0
"""The two operators of `torch.amp.GradScaler`: gradients divided by the scale of the loss, and the next scale.

What they compute is said by PyTorch's kernels for the CPU (aten/src/ATen/native/cpu/AmpGradScalerKernels.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def decompositions() -> dict[Any, Callable[..., Any]]:
    """By operator."""
    aten = torch.ops.aten
    return {
        aten._amp_foreach_non_finite_check_and_unscale.default: unscaled,
        aten._amp_update_scale.default: updated,
    }


def unscaled(grads: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> tuple[list[Tensor], Tensor]:
    """Gradients times one over the scale, rounded once; and 1 where any of them is infinite or NaN."""
    finite = torch.stack([g.isfinite().all() for g in grads]).all()
    found = torch.where(finite, found_inf, torch.ones_like(found_inf))
    return [(g.float() * inv_scale).to(g.dtype) for g in grads], found


def updated(
    scale: Tensor, growth_tracker: Tensor, found_inf: Tensor, growth: float, backoff: float, interval: int
) -> tuple[Tensor, Tensor]:
    """The scale of the next step, which backs off after an infinity and grows after so many steps without, as long as
    it stays finite; and the number of steps without."""
    overflow, steps = found_inf > 0, growth_tracker + 1
    due, grown = steps == interval, scale * growth
    kept = torch.where(due & grown.isfinite(), grown, scale)
    return torch.where(overflow, scale * backoff, kept), torch.where(overflow | due, 0, steps)
