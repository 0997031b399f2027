# SPDX-License-Identifier: Apache-2.0
"""A program on the device beside the same on the CPU: where they first say something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tools.recorded.world import Said

_EPS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


def difference(got: Sequence[Said], wanted: Sequence[Said]) -> str:
    """The first difference in words, "" where there is none."""
    for ours, theirs in zip(got, wanted):
        if ours.step != theirs.step:
            said = [f"{s.step} {s.value!r:.99} {s.note}" for s in (ours, theirs)]
            return f"{said[0]} for {said[1]}"
        wrong = unlike(ours.value, theirs.value, theirs.exact)
        if wrong:
            return f"{theirs.step}: {wrong}"
    if len(got) != len(wanted):
        return f"{len(got)} values for {len(wanted)}"
    return ""


def unlike(ours: Any, theirs: Any, exact: bool) -> str:
    """What two values differ in."""
    if type(ours) is not type(theirs) or (isinstance(theirs, list) and len(ours) != len(theirs)):
        return f"{ours!r:.200} for {theirs!r:.200}"
    if isinstance(theirs, list):
        return next((w for a, b in zip(ours, theirs) if (w := unlike(a, b, exact))), "")
    if not isinstance(theirs, Tensor):
        if isinstance(theirs, float) and isinstance(ours, float) and not exact:
            return unlike(torch.tensor(ours), torch.tensor(theirs), exact)
        return "" if ours == theirs or (ours != ours and theirs != theirs) else f"{ours!r:.200} for {theirs!r:.200}"
    if ours.shape != theirs.shape or ours.dtype is not theirs.dtype:
        return f"{ours.dtype}{list(ours.shape)} for {theirs.dtype}{list(theirs.shape)}"
    bad = ~_agrees(ours, theirs, exact)
    if not bad.any():
        return ""
    at = bad.nonzero()[0].tolist()
    return f"{int(bad.sum())} of {ours.numel()}, at {at}: {ours[tuple(at)].item()!r} for {theirs[tuple(at)].item()!r}"


def _agrees(ours: Tensor, theirs: Tensor, exact: bool) -> Tensor:
    same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
    if exact or not theirs.is_floating_point():
        return same
    a, b = ours.double(), theirs.double()
    scale = b.abs().amax() if b.numel() else b.sum()
    eps = _EPS.get(theirs.dtype, 2.0**-12)
    return same | ((a - b).abs() <= eps * (b.abs() + 0.25 * scale.nan_to_num(0.0, 0.0) + 1e-4))
