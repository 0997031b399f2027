# SPDX-License-Identifier: Apache-2.0
"""PyTorch's functional collectives for Python: the module, and whether it is being traced."""

from __future__ import annotations

from typing import Any

from torch.distributed import _functional_collectives as collectives

__all__ = ["are_traced", "collectives"]

are_traced: Any = collectives._are_we_tracing
