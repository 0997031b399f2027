# SPDX-License-Identifier: Apache-2.0
"""Kernels of operators on sparse tensors under the device's own dispatch keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trnlab.frontends.torch.device.dispatch import fall_back, implement, operator
from trnlab.frontends.torch.sparse import gradients, kernels, on_host
from trnlab.frontends.torch.sparse.parts import COMPRESSED_KEY, COO_KEY, NO_FORM

_KEYS = ("SparsePrivateUse1", "SparseCsrPrivateUse1")
_LIBRARIES: list[torch.library.Library] = []  # a library's kernels live as long as it does


def _any(op: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator: in dense ones if there is a form, else by the host."""
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
        implement(aten, "empty.memory_format", kernels.empty, key)
        for op in kernels.KERNELS:
            implement(aten, op, _bound(op), key)
    for op in kernels.FROM_DENSE:
        implement(aten, op, _bound(op), "PrivateUse1")
    for names, key, of_pytorch in (
        (kernels.HEADERS_OF_COO, _KEYS[0], COO_KEY),
        (kernels.HEADERS_OF_COMPRESSED, _KEYS[1], COMPRESSED_KEY),
    ):
        for name in names:
            op = operator(name)
            implement(aten, op, kernels.header(op, of_pytorch), key)
    gradients.register(aten)
    _LIBRARIES.extend((everything, aten))
