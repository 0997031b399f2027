# SPDX-License-Identifier: Apache-2.0
"""torch_xla.amp: automatic mixed precision of the device, and optimizers that skip steps with infinite gradients."""

from __future__ import annotations

from typing import Any

import torch

from trnlab.frontends.torch.xla.names import refusing

__all__ = ["SGD", "Adam", "AdamW", "GradScaler", "autocast"]


class autocast(torch.amp.autocast):
    """torch.autocast of the device, in bfloat16."""

    def __init__(
        self,
        device: Any = None,
        enabled: bool = True,
        dtype: torch.dtype | None = torch.bfloat16,
        cache_enabled: bool | None = True,
    ) -> None:
        super().__init__("neuron", dtype=dtype or torch.bfloat16, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler of the device."""

    def __init__(self, *args: Any, **named: Any) -> None:
        named.pop("use_zero_grad", None)
        super().__init__("neuron", *args, **named)  # type: ignore[no-untyped-call]


class _SkipsInfinite:
    """A step of which `found_inf` says that a gradient is infinite changes nothing."""

    def step(self, closure: Any = None, found_inf: torch.Tensor | None = None) -> Any:
        """One step, unless a gradient is infinite."""
        if found_inf is not None and bool(found_inf.item()):
            return None if closure is None else closure()
        return super().step(closure)  # type: ignore[misc]


class SGD(_SkipsInfinite, torch.optim.SGD):
    """torch.optim.SGD."""


class Adam(_SkipsInfinite, torch.optim.Adam):
    """torch.optim.Adam."""


class AdamW(_SkipsInfinite, torch.optim.AdamW):
    """torch.optim.AdamW."""


__getattr__ = refusing("torch_xla.amp", "there are autocast, GradScaler and syncfree's SGD, Adam and AdamW")
