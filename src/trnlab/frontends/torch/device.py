# SPDX-License-Identifier: Apache-2.0
"""Fill PyTorch's slot for outside backends with the device `neuron`, from Python alone.

Leans on `torch.utils.backend_registration`, which PyTorch calls experimental, hence the pinned PyTorch version.
"""

from __future__ import annotations

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from trnlab.frontends.torch import (
    autocast,
    composites,
    data_attribute,
    default_backend,
    generic,
    host_ops,
    lightning,
    module,
    modules,
    recording,
    recurrent,
    storages,
)
from trnlab.frontends.torch.distributed import registration


def register() -> None:
    """Make `torch.device("neuron")` work. Does nothing when it works already."""
    if torch._C._get_privateuse1_backend_name() == "neuron":
        return
    _setup_privateuseone_for_python_backend("neuron", backend_module=module)
    host_ops.register()
    recording.register()
    autocast.register()
    composites.register()
    recurrent.register()
    storages.register()
    modules.register()
    generic.register()
    default_backend.register()
    data_attribute.register()
    registration.register()
    lightning.install()
