# SPDX-License-Identifier: Apache-2.0
"""Python functions as kernels of PyTorch's dispatcher, which Dynamo leaves alone.

While compiled code runs, Dynamo looks at every Python frame that starts, those of our kernels too: after a graph
break it would compile the relabelling of tensors. A code object that is marked is skipped, with all that it calls.
(That is what `torch._dynamo.disable` comes to; asking for it by name would load all of Dynamo with `import torch`.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

Kernel = Callable[..., Any]
_ABOVE = (
    "Python", "PythonTLSSnapshot", "PreDispatch", "Functionalize", "FuncTorchDynamicLayerFrontMode",
    "FuncTorchDynamicLayerBackMode", "Conjugate", "Negative", "ZeroTensor",
)  # fmt: skip
_TRACING = tuple(getattr(torch._C.DispatchKey, name) for name in _ABOVE)


def untraced(kernel: Kernel) -> Kernel:
    """The same function; Dynamo runs it as it is, and what it calls."""
    set_code_exec_strategy(kernel.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return kernel


def untraced_methods(cls: type) -> type:
    """The same class; Dynamo runs its methods as they are."""
    for member in vars(cls).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType):
            untraced(function)
    return cls


@contextmanager
def tracing_allowed() -> Iterator[None]:
    """Within the block operators can be traced, also below what has switched all of that off: so DTensor calls the
    operators on its local tensors."""
    off = [key for key in _TRACING if torch._C._dispatch_tls_is_dispatch_key_excluded(key)]
    try:
        for key in off:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
        yield
    finally:
        for key in off:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, True)


def implement(library: torch.library.Library, op: Any, kernel: Kernel, key: str) -> None:
    """Make `kernel` what `op` runs under a dispatch key."""
    library.impl(op, untraced(kernel), key)


def fall_back(library: torch.library.Library, kernel: Kernel, key: str) -> None:
    """Make `kernel` what every operator without one of its own runs under a dispatch key."""
    library.fallback(untraced(kernel), key)
