# SPDX-License-Identifier: Apache-2.0
"""PyTorch's slot for a device from outside, filled from Python: PyTorch calls that way in experimental."""

from __future__ import annotations

from types import ModuleType

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend


def name_of_device() -> str:
    """What the device in the slot is called; "privateuseone" where the slot is empty."""
    return str(torch._C._get_privateuse1_backend_name())


def fill(name: str, module: ModuleType) -> None:
    """Make `torch.device(name)` known, with memory of the host; module: becomes `torch.<name>`."""
    _setup_privateuseone_for_python_backend(name, backend_module=module)
