# SPDX-License-Identifier: Apache-2.0
"""Kernels of operators on sparse tensors under the device's own dispatch keys.

They are put in place when the first sparse tensor is made, so that `import torch` does not load them: each is made by
an operator that has no kernel until then, and comes to what runs without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trnlab.frontends.torch.dispatch import fall_back, implement
from trnlab.frontends.torch.sparse import FROM_DENSE

_KEYS = ("SparsePrivateUse1", "SparseCsrPrivateUse1")
_LIBRARIES: list[torch.library.Library] = []  # a library's kernels live as long as it does
_complete = False


def _any(op: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator: in dense ones if there is a form, else by the host."""
    if not _complete:
        _put_in_place()
        return op(*args, **kwargs)
    from trnlab.frontends.torch.sparse import kernels, on_host
    from trnlab.frontends.torch.sparse.parts import NO_FORM

    result = kernels.computed(op, args, kwargs)
    return on_host.run(op, args, kwargs) if result is NO_FORM else result


def _bound(op: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return _any(op, *args, **kwargs)

    return run


def register() -> None:
    """Give the device sparse tensors. Called once."""
    everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    for key in _KEYS:
        fall_back(everything, _any, key)
    for name in FROM_DENSE:
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        implement(aten, op, _bound(op), "PrivateUse1")
    _LIBRARIES.extend((everything, aten))


def _put_in_place() -> None:
    """Register all kernels, once."""
    global _complete
    from trnlab.frontends.torch.sparse import gradients, kernels
    from trnlab.frontends.torch.sparse.parts import COMPRESSED_KEY, COO_KEY

    _complete = True
    aten = torch.library.Library("aten", "IMPL")
    for key in _KEYS:
        implement(aten, "empty.memory_format", kernels.empty, key)
        for op in kernels.KERNELS:
            implement(aten, op, _bound(op), key)
    ops = torch.ops.aten
    for names, key, of_pytorch in (
        (kernels.HEADERS_OF_COO, _KEYS[0], COO_KEY), (kernels.HEADERS_OF_COMPRESSED, _KEYS[1], COMPRESSED_KEY),
    ):  # fmt: skip
        for name in names:
            op = getattr(ops, name).default
            implement(aten, op, kernels.header(op, of_pytorch), key)
    gradients.register(aten)
    _LIBRARIES.append(aten)
