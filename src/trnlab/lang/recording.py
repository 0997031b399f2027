# SPDX-License-Identifier: Apache-2.0
"""What tensors need of the recorder that they belong to, which itself is built from tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from trnlab.isa.base import Engine


class Recording(Protocol):
    """A kernel that is being recorded, see `lang.recorder.Recorder`.

    dynamic: some view's address is chosen at run time. tensor_type: what its tensors are.
    """

    dynamic: bool
    tensor_type: type[Any]

    def watching(self) -> bool:
        """Whether values can be shown to the user now."""
        ...

    def read(self, tensor: Any) -> np.ndarray[Any, Any]:
        """What a tensor holds at this point of the kernel, in its shape."""
        ...

    def emit(self, name: str, *, engine: Engine | None = None, **arguments: Any) -> None:
        """Append an instruction."""
        ...

    def tensor(self, shape: Any, kind: Any, region: Any, *, name: str = "") -> Any:
        """Fresh memory, not initialised."""
        ...

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """make() the first time, the same object later."""
        ...
