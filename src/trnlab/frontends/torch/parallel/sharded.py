# SPDX-License-Identifier: Apache-2.0
"""DTensors in captured steps: a program sees the part that a rank has, the user's code the tensor as a whole."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import Any

from torch import Tensor


def is_sharded(tensor: Any) -> bool:
    """Whether it is a DTensor; without importing what a script without them need not wait for."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """What of a tensor lies on this rank."""
    return tensor._local_tensor if is_sharded(tensor) else tensor  # type: ignore[attr-defined, no-any-return]


def placed(tensor: Any) -> Hashable:
    """Where the parts of a DTensor are: mesh, placements, and the form of the part that lies here."""
    part = tensor._local_tensor
    return tensor.device_mesh, tensor.placements, part.shape, part.stride()


def leaf(real: Tensor, part: Tensor, requires_grad: bool) -> Tensor:
    """A tensor with the local part `part`, placed as `real` is."""
    from torch.distributed.tensor import DTensor

    made: Tensor = DTensor(part, real._spec, requires_grad=requires_grad)  # type: ignore[attr-defined, call-arg]
    return made


def placed_as(gradient: Any, parameter: Any) -> Any:
    """A gradient placed as its parameter is: what ranks have computed of it is added up."""
    if not is_sharded(gradient) or gradient.placements == parameter.placements:
        return gradient
    return gradient.redistribute(parameter.device_mesh, parameter.placements)


def whole(value: Any) -> Any:
    """A result as every rank has it."""
    return value.full_tensor() if is_sharded(value) else value
