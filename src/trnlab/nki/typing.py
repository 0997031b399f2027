# SPDX-License-Identifier: Apache-2.0
"""nki.typing: annotations of tensors, which say something to readers only, and descriptions for benchmarks.

`tensor[128, 512]` annotates; `tensor[[128, 512], nl.bfloat16]` describes an argument of a kernel that is timed, for
which no data are needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnlab.lang.formats import format_of


class TensorType:
    """tensor[128, 512] and the like. shape, dtype: None where they are left open."""

    def __init__(self, shape: tuple[int, ...] | None = None, dtype: Any = None) -> None:
        self.shape, self.dtype = shape, dtype

    def __getitem__(self, key: Any) -> TensorType:
        if isinstance(key, tuple) and key and isinstance(key[0], (list, tuple)):
            return TensorType(tuple(int(n) for n in key[0]), *key[1:2])
        return self

    def zeros(self) -> np.ndarray[Any, Any]:
        """An array of what is described. Raises TypeError for an annotation that says no shape or no format."""
        if self.shape is None or self.dtype is None:
            raise TypeError("describe the tensor as tensor[[rows, columns], dtype]")
        return np.zeros(self.shape, format_of(self.dtype).dtype)


tensor = TensorType()
mutable_tensor = TensorType()
scalar = TensorType()
