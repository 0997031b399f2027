# SPDX-License-Identifier: Apache-2.0
"""Small stand-ins for packages that example scripts import only to name a device."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def install() -> None:
    """torch_xla and torch_neuronx, whose device is this machine's CPU."""
    try:
        import torch
    except ModuleNotFoundError:
        return
    xla, core, model = ModuleType("torch_xla"), ModuleType("torch_xla.core"), ModuleType("torch_xla.core.xla_model")
    members: dict[str, Any] = {
        "xla_device": lambda *_: torch.device("cpu"), "mark_step": lambda *_, **__: None,
        "wait_device_ops": lambda *_, **__: None,
    }  # fmt: skip
    for name, value in members.items():
        setattr(model, name, value)
    xla.device = members["xla_device"]  # type: ignore[attr-defined]
    xla.sync = members["mark_step"]  # type: ignore[attr-defined]
    xla.core, core.xla_model = core, model  # type: ignore[attr-defined]
    sys.modules |= {"torch_xla": xla, "torch_xla.core": core, "torch_xla.core.xla_model": model}
    sys.modules["torch_neuronx"] = ModuleType("torch_neuronx")
