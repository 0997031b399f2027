# SPDX-License-Identifier: Apache-2.0
"""nki.typing: annotations of a kernel's tensors, and descriptions for benchmarks.

`tensor[128, 512]` annotates; a call with another shape is refused. `tensor[[128, 512], nl.bfloat16]` describes an
argument of a kernel that is timed, for which no data are needed.

Source: migration/index.rst (nki.typing module) of aws-neuron/aws-neuron-sdk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trnlab.errors import UsageError
from trnlab.lang.formats import format_of


class TensorAnnotation:
    """A tensor. shape, dtype: None where they are left open; a size that is no number is a name for any."""

    def __init__(self, shape: tuple[Any, ...] | None = None, dtype: Any = None) -> None:
        self.shape, self.dtype = shape, dtype

    def __getitem__(self, key: Any) -> TensorAnnotation:
        if key is mutable:
            return mutable_tensor
        if isinstance(key, tuple) and key and isinstance(key[0], (list, tuple)):
            return TensorAnnotation(tuple(int(n) for n in key[0]), *key[1:2])
        return TensorAnnotation(key if isinstance(key, tuple) else (key,))

    def __repr__(self) -> str:
        return "tensor" if self.shape is None else f"tensor[{', '.join(map(str, self.shape))}]"

    def zeros(self) -> np.ndarray[Any, Any]:
        """An array of what is described. Raises TypeError for an annotation that says no shape or no format."""
        if self.shape is None or self.dtype is None:
            raise TypeError("describe the tensor as tensor[[rows, columns], dtype]")
        return np.zeros(self.shape, format_of(self.dtype).dtype)

    def allows(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape is one of these."""
        if self.shape is None or any(size is Ellipsis for size in self.shape):
            return True
        known = [(a, b) for a, b in zip(self.shape, shape) if isinstance(a, int)]
        return len(shape) == len(self.shape) and all(a == b for a, b in known)


tensor = TensorAnnotation()
mutable_tensor = TensorAnnotation()  # one that the kernel writes to
mutable = "mutable"  # tensor[mutable] is the same
scalar = TensorAnnotation()


def check(function: Callable[..., Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UsageError for an argument whose shape is not what the kernel's annotation says."""
    notes = getattr(function, "__annotations__", {})
    for name, shape in shapes.items():
        note = notes.get(name)
        if isinstance(note, TensorAnnotation) and not note.allows(shape):
            raise UsageError(
                f"kernel {function.__name__!r}: argument {name!r} has another shape than it says",
                code="TRN111",
                limit=repr(note),
                got=list(shape),
                remedy="pass that shape, or change the annotation",
            )
