# SPDX-License-Identifier: Apache-2.0
"""Once torch_xla is imported, the device is "xla" to a script and to its libraries: see `device.naming`."""

from __future__ import annotations

import torch

from trnlab.frontends.torch.device import naming
from trnlab.frontends.torch.device.host_ops import Strideless
from trnlab.frontends.torch.device.naming import NEURON, DeviceNames

XLA = torch.device("xla", 0)


def device() -> torch.device:
    """What `xm.xla_device()` is: equal to the device of a tensor on it, as the caller sees that."""
    return DeviceNames.told or NEURON


def install() -> None:
    """For the rest of the process: only scripts that import torch_xla say "xla"."""
    naming.take("xla")
    DeviceNames.told, Strideless.wanted = XLA, True


def uninstall() -> None:
    """Be as before, for tests."""
    naming.leave("xla")
    DeviceNames.told, Strideless.wanted = None, False
