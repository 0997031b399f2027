# SPDX-License-Identifier: Apache-2.0
"""torch_xla.utils.checkpoint: activations that are computed again in the backward pass, as PyTorch's."""

from __future__ import annotations

from typing import Any

import torch.utils.checkpoint as pytorch

from trnlab.frontends.torch.xla.names import refusing

__all__ = ["CheckpointFunction", "checkpoint"]
CheckpointFunction, check_backward_validity = pytorch.CheckpointFunction, pytorch.check_backward_validity
detach_variable = pytorch.detach_variable
_pytorchs = pytorch.checkpoint  # for scripts put ours in its place


def checkpoint(function: Any, *args: Any, use_reentrant: bool = True, **named: Any) -> Any:
    """torch.utils.checkpoint.checkpoint, in the reentrant form unless told otherwise."""
    return _pytorchs(function, *args, use_reentrant=use_reentrant, **named)


__getattr__ = refusing("torch_xla.utils.checkpoint", "there is checkpoint; torch.utils.checkpoint has the rest")
