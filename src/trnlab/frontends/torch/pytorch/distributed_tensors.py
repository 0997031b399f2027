# SPDX-License-Identifier: Apache-2.0
"""What DTensor is made of: which part of a tensor a rank holds, and who handles its operators."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

__all__ = ["compute_local_shape_and_global_offset", "dispatcher", "handlers", "local_results"]


def dispatcher() -> Any:
    """What places operators on DTensors."""
    return DTensor._op_dispatcher  # type: ignore[attr-defined]


def handlers() -> dict[Any, Any]:
    """By operator: a function that takes it over."""
    found: dict[Any, Any] = dispatcher()._custom_op_handlers
    return found


def local_results(op: Any, args: Any, info: Any) -> Any:
    """Run an operator on the parts that this rank holds, once `info` says how they are placed."""
    return dispatcher()._dispatch_get_local_results_slow_path(op, args, info)
