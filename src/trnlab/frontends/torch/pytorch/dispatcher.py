# SPDX-License-Identifier: Apache-2.0
"""PyTorch's dispatcher: its keys, the modes that listen to operators, and which frames Dynamo leaves alone."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet, _ExcludeDispatchKeyGuard
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,
)

__all__ = [
    "AutoDispatchBelowAutograd",
    "DispatchKey",
    "DispatchKeySet",
    "ExcludedKeys",
    "OpOverload",
    "TorchDispatchMode",
    "functions_not_overridden",
    "is_functorchs",
    "is_handled_in_python",
    "is_off",
    "is_traceable_wrapper_subclass",
    "kernels_under",
    "mode_count",
    "modes",
    "modes_off",
    "namespaces",
    "set_off",
    "skip_in_dynamo",
]

AutoDispatchBelowAutograd: Any = torch._C._AutoDispatchBelowAutograd  # a context in which autograd does not listen
OpOverload: Any = torch._ops.OpOverload
ExcludedKeys: Any = _ExcludeDispatchKeyGuard  # a context, within which operators pass over the keys
functions_not_overridden: Any = torch._C.DisableTorchFunction  # a context without `__torch_function__`
modes_off: Any = _disable_current_modes  # a context in which no `TorchDispatchMode` hears of operators
modes: Any = _get_current_dispatch_mode_stack
mode_count: Any = torch._C._len_torch_dispatch_stack
kernels_under: Any = torch._C._dispatch_get_registrations_for_dispatch_key
is_functorchs: Any = torch._C._functorch.is_functorch_wrapped_tensor  # whether a tensor stands for one in a transform
is_off: Any = torch._C._dispatch_tls_is_dispatch_key_excluded
set_off: Any = torch._C._dispatch_tls_set_dispatch_key_excluded


def is_handled_in_python(tensor: torch.Tensor) -> bool:
    """Whether a class of tensors handles operators on it (`__torch_dispatch__`)."""
    return bool(torch._C._dispatch_keys(tensor).has(DispatchKey.Python))


def namespaces() -> list[str]:
    """Names of the libraries of which operators are loaded."""
    return list(torch.ops._dir)


def skip_in_dynamo(code: CodeType) -> None:
    """Dynamo runs the frames of this code as they are, and what they call.

    (`torch._dynamo.disable` comes to that; asking for it by name would load all of Dynamo with `import torch`.)
    """
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
