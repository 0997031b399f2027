# SPDX-License-Identifier: Apache-2.0
"""Fill PyTorch's slot for outside backends with the device `neuron`, from Python alone.

`pytorch` holds what of that PyTorch calls experimental.
"""

from __future__ import annotations

from trnlab.frontends.torch import default_backend, lightning
from trnlab.frontends.torch.decompositions import composites, recurrent
from trnlab.frontends.torch.device import autocast, data_attribute, generic, host_ops, module, modules, storages
from trnlab.frontends.torch.distributed import registration
from trnlab.frontends.torch.pytorch import slot
from trnlab.frontends.torch.recording import choice
from trnlab.frontends.torch.sparse import registration as sparse


def register() -> None:
    """Make `torch.device("neuron")` work. Does nothing when it works already."""
    if slot.name_of_device() == "neuron":
        return
    slot.fill("neuron", module)
    host_ops.register()
    choice.register()
    sparse.register()
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
