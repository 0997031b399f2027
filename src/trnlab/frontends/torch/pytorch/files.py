# SPDX-License-Identifier: Apache-2.0
"""How PyTorch's distributed checkpoints say where a tensor lies."""

from __future__ import annotations

from typing import Any

from torch.distributed.checkpoint.filesystem import _StorageInfo

PlaceInFile: Any = _StorageInfo
