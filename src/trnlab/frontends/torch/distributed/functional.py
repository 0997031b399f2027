# SPDX-License-Identifier: Apache-2.0
"""The functional collective that PyTorch looks up by device in C++, where it finds no backend written in Python."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.device.dispatch import implement
from trnlab.frontends.torch.pytorch.collectives import group_of

_LIBRARIES: list[torch.library.Library] = []


def _all_gather_into_tensor_out(given: Tensor, group_size: int, group_name: Any, *, out: Tensor) -> Tensor:
    """Done when it returns, so that there is nothing to wait for."""
    group_of(group_name).all_gather_single(out, given.contiguous()).wait()
    return out


def install() -> None:
    """Register it for the device, once."""
    if not _LIBRARIES:
        library = torch.library.Library("_c10d_functional", "IMPL")
        implement(library, "all_gather_into_tensor_out", _all_gather_into_tensor_out, "PrivateUse1")
        _LIBRARIES.append(library)
