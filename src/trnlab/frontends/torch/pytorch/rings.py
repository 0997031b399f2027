# SPDX-License-Identifier: Apache-2.0
"""`context_parallel`: attention whose keys and values go round the ranks. PyTorch calls it experimental."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.experimental._context_parallel import _attention

__all__ = ["backward", "forward", "handlers", "handlers_outside", "register_sharding"]

handlers: dict[Any, Any] = _attention.custom_ops  # in place within a context
handlers_outside: dict[Any, Any] = _attention.existing_custom_ops
forward: Any = _attention._templated_ring_attention
backward: Any = _attention._templated_ring_attention_backward
