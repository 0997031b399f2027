# SPDX-License-Identifier: Apache-2.0
"""nki.typing: annotations of tensors, which say something to readers only."""

from __future__ import annotations

from typing import Any


class _Annotation:
    """tensor[128, 512] and the like."""

    def __getitem__(self, shape: Any) -> _Annotation:
        return self


tensor = _Annotation()
mutable_tensor = _Annotation()
