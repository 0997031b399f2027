# SPDX-License-Identifier: Apache-2.0
"""`p.data = p.data.to("neuron")`: a tensor that gets data of another device in its place, and stays the object it is.

PyTorch does this among the devices that it knows itself: whoever holds the tensor, graphs and views too, sees the new
data, and a gradient stays where it is. It asks an operator whether two tensors may do so, and of those registered
from outside the operator does not know that their memory is as plain as the host's: so it is answered here.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.device.dispatch import implement, operator
from trnlab.frontends.torch.pytorch.tensors import data_of_tensors

_COMPATIBLE = operator("_has_compatible_shallow_copy_type")
_LIBRARIES: list[torch.library.Library] = []


def _set(tensor: Any, value: Any) -> None:
    engine = sys.modules.get("trnlab.frontends.common.engine")  # of a walk, if one is under way
    told = getattr(engine.current(), "exchanges", None) if engine is not None else None
    if told is not None:
        told(tensor)
    data_of_tensors.__set__(tensor, value)


def _compatible(tensor: Tensor, other: Tensor) -> bool:
    """Whether one can take what the other is made of: dense ones of host and device, and what PyTorch says."""
    if {tensor.device.type, other.device.type} == {"cpu", "neuron"}:
        return tensor.layout == other.layout == torch.strided
    return bool(_COMPATIBLE.decompose(tensor, other))


def register() -> None:
    """Let tensors take such data. Called once."""
    aten = torch.library.Library("aten", "IMPL")
    for key in ("CPU", "PrivateUse1"):
        implement(aten, _COMPATIBLE, _compatible, key)
    _LIBRARIES.append(aten)
    torch.Tensor.data = property(data_of_tensors.__get__, _set, data_of_tensors.__delete__)  # type: ignore[assignment,method-assign]
