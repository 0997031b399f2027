# SPDX-License-Identifier: Apache-2.0
"""Python functions as kernels of PyTorch's dispatcher, which Dynamo leaves alone.

While compiled code runs, Dynamo looks at every Python frame that starts, those of our kernels too: after a graph
break it would compile the relabelling of tensors. A code object that is marked is skipped, with all that it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch

from trnlab.frontends.torch.pytorch import dispatcher

Kernel = Callable[..., Any]
_ABOVE = (
    "Python",
    "PythonTLSSnapshot",
    "PreDispatch",
    "Functionalize",
    "FuncTorchDynamicLayerFrontMode",
    "FuncTorchDynamicLayerBackMode",
    "Conjugate",
    "Negative",
    "ZeroTensor",
)
_TRACING = tuple(getattr(dispatcher.DispatchKey, name) for name in _ABOVE)


def untraced(kernel: Kernel) -> Kernel:
    """The same function; Dynamo runs it as it is, and what it calls."""
    dispatcher.skip_in_dynamo(kernel.__code__)
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
    off = [key for key in _TRACING if dispatcher.is_off(key)]
    try:
        for key in off:
            dispatcher.set_off(key, False)
        yield
    finally:
        for key in off:
            dispatcher.set_off(key, True)


def operator(name: str) -> Any:
    """PyTorch's operator of a name, `add.Tensor` or `torchvision::nms`: aten's unless it names another namespace."""
    namespace, _, rest = name.rpartition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace or "aten"), packet), overload or "default")


def implement(library: torch.library.Library, op: Any, kernel: Kernel, key: str) -> None:
    """Make `kernel` what `op` runs under a dispatch key."""
    library.impl(op, untraced(kernel), key)


def fall_back(library: torch.library.Library, kernel: Kernel, key: str) -> None:
    """Make `kernel` what every operator without one of its own runs under a dispatch key."""
    library.fallback(untraced(kernel), key)
