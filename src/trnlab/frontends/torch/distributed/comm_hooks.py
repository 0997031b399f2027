# SPDX-License-Identifier: Apache-2.0
"""Communication hooks of DistributedDataParallel that PyTorch keeps for some GPUs: gradients in bf16.

It refuses them by name on every other device; this one exchanges bf16 as any format. And the one of C++ that
compresses takes futures of process groups of C++ alone; its twin of Python is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

_check, _builtin = "_check_comm_hook", "_register_builtin_comm_hook"


def install() -> None:
    """Let replicas on the device have them, once."""
    checking: Any = getattr(DistributedDataParallel, _check)
    if not hasattr(checking, "__wrapped__"):
        setattr(DistributedDataParallel, _check, _by_any_name(checking))
        setattr(DistributedDataParallel, _builtin, _of_python(getattr(DistributedDataParallel, _builtin)))


def _by_any_name(checking: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(checking)
    def checked(replica: DistributedDataParallel, hook: Any) -> Any:
        if replica.device_type != "neuron" or not callable(hook):
            return checking(replica, hook)

        @wraps(hook)
        def unnamed(*args: Any, **kwargs: Any) -> Any:
            return hook(*args, **kwargs)

        unnamed.__name__ = "hook"
        return checking(replica, unnamed)

    return checked


def _of_python(registering: Callable[..., None]) -> Callable[..., None]:
    @wraps(registering)
    def registered(replica: DistributedDataParallel, comm_hook_type: Any) -> None:
        if replica.device_type != "neuron" or comm_hook_type != dist.BuiltinCommHookType.FP16_COMPRESS:
            return registering(replica, comm_hook_type)
        return replica.register_comm_hook(replica.process_group, default_hooks.fp16_compress_hook)

    return registered
