# SPDX-License-Identifier: Apache-2.0
"""torch.classes.neuron: classes of loaded models that the vendor's binary registers, each refused when it is used.

The vendor's libraries have them in annotations, which are evaluated when a file is imported.
"""

from __future__ import annotations

import types

import torch

from trnlab.frontends.torch.xla.names import refusing

_CLASSES = ("LayoutTransformation", "Model", "SPMDModel")


def register() -> None:
    """Have PyTorch find them, unless there are classes of that name space."""
    if "neuron" not in vars(torch.classes):
        space = types.ModuleType("torch.classes.neuron", __doc__)
        space.__getattr__ = refusing(  # type: ignore[method-assign]
            "torch.classes.neuron", "models are compiled and loaded by torch_neuronx.trace", _CLASSES
        )
        setattr(torch.classes, "neuron", space)  # noqa: B010 (no attribute that type checkers know)
