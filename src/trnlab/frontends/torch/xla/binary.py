# SPDX-License-Identifier: Apache-2.0
"""torch_xla._XLAC: of torch_xla's own binary, what the vendor's libraries call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.steps import mark_step


def _xla_sync_multi(tensors: Sequence[Any], devices: Any = (), wait: bool = True, sync_xla_data: bool = True) -> None:
    mark_step()


def _xla_get_cpu_tensors(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().cpu() for tensor in tensors]


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    return tensor.data_ptr()


def _xla_runtime_is_initialized() -> bool:
    return dist.is_initialized()


def _get_ir_debug() -> bool:
    return False


def _set_ir_debug(value: bool) -> None:
    return None


__getattr__ = refusing(
    "torch_xla._XLAC",
    "it is torch_xla's own binary; trnlab run --emit-stablehlo writes modules of StableHLO",
    ("_get_xla_tensors_text", "_get_xla_tensors_hlo", "_xla_get_devices"),
)
