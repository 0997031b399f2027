# SPDX-License-Identifier: Apache-2.0
"""Every gradient of one step, on the chip and on the host.

An optimizer with momentum that changes nothing keeps them as its state, whoever computes the step: a captured one has
no other place for them. Losses alone say little of gradients: one that is off by a percent moves the losses of three
steps by less than rounding does.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from tools.zoo.training import Training, by_xla

Gradients = dict[str, torch.Tensor]
TIMES, PART = 20, 1e-5
"""A gradient is wrong beyond so many times what rounding does to it on the host, and such a part of the largest of
its tensor. Where gradients cancel, the largest is small, and what rounding does to them is all that there is."""


@dataclass
class GradientReference:
    """The host's gradients of several steps with rounding, and those to compare with."""

    rounded: list[Gradients]
    exact: Gradients

    def allowed(self, name: str) -> float:
        """How far an element of a gradient may be off."""
        exact = self.exact[name]
        band = max(_apart(other[name], exact) for other in self.rounded)
        return TIMES * band + PART * float(exact.abs().max())


def gradients(subject: Any, dtype: torch.dtype = torch.float32, way: str | None = None, moved: int = 0) -> Gradients:
    """Those of the first step, in float64; without parameters that have none. For the arguments see `Training`."""
    training = Training(subject, dtype, way, moved, lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.9))
    with by_xla() if way == "xla" else contextlib.nullcontext():
        training.losses(1)
    states = {name: training.optimizer.state.get(p, {}) for name, p in training.model.named_parameters()}
    kept = {name: state.get("momentum_buffer") for name, state in states.items()}
    return {name: g.detach().cpu().double() for name, g in kept.items() if g is not None and g.numel()}


def reference_gradients(subject: Any) -> GradientReference:
    """What the host computes; see `run_one.reference`."""
    rounded = [gradients(subject, moved=seed) for seed in range(4)]
    try:
        return GradientReference(rounded, gradients(subject, torch.float64))
    except RuntimeError:
        return GradientReference(rounded[1:], rounded[0])


def drawn_gradients(subject: Any) -> GradientReference:
    """For a model that draws; see `run_one.drawn`."""
    exact, *rounded = [gradients(subject, way="xla", moved=seed) for seed in range(4)]
    torch.compiler.reset()
    return GradientReference(rounded, exact)


def compared(found: Gradients, reference: GradientReference) -> dict[str, Any]:
    """How far gradients are off, the worst one as a part of what is allowed; above 1 it is wrong."""
    missing = sorted(name for name in reference.exact if name not in found and bool(reference.exact[name].any()))
    extra = sorted(name for name in found if name not in reference.exact and bool(found[name].any()))
    parts = {}
    for name, exact in reference.exact.items():
        gap = _apart(found[name], exact) if name in found else 0.0
        parts[name] = gap / (reference.allowed(name) or 1.0), gap, float(exact.abs().max())
    worst = max(parts, key=lambda name: parts[name][0])
    part, gap, scale = parts[worst]
    return {
        "count": len(parts),
        "worst": worst,
        "part": part,
        "gap": gap,
        "scale": scale,
        "missing": missing[:5],
        "extra": extra[:5],
        "wrong": part > 1 or bool(missing or extra),
    }


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference; what is not finite has to be the same."""
    if not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    apart = torch.where((a == b) | a.isnan(), 0.0, (a - b).abs())
    return float(apart.max())
