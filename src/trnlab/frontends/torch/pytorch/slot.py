# SPDX-License-Identifier: Apache-2.0
"""PyTorch's slot for a device from outside, filled from Python: PyTorch calls that way in experimental."""

from __future__ import annotations

from types import ModuleType

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from trnlab.frontends.torch.pytorch.pending_errors import PLACES, keep, raised_again, take
from trnlab.frontends.torch.pytorch.tensors import wrap_backward

_KIND = torch._C._autograd.DeviceType.PrivateUse1


class DeviceGuard(torch._C._acc.DeviceGuard):
    """The one device, which is always the current one. PyTorch asks for its kind also while an error is pending."""

    def type_(self) -> torch._C._autograd.DeviceType:
        """Which kind of device it is."""
        take(*PLACES)  # before anything is called that may fail because of it
        keep()
        return _KIND


def name_of_device() -> str:
    """What the device in the slot is called; "privateuseone" where the slot is empty."""
    return str(torch._C._get_privateuse1_backend_name())


def fill(name: str, module: ModuleType) -> None:
    """Make `torch.device(name)` known, with memory of the host; module: becomes `torch.<name>`."""
    _setup_privateuseone_for_python_backend(name, backend_module=module, device_guard=DeviceGuard())
    wrap_backward(raised_again)
