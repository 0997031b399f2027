# SPDX-License-Identifier: Apache-2.0
"""What a `DataLoader` is gone through by."""

from __future__ import annotations

from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

Batches: Any = _BaseDataLoaderIter
