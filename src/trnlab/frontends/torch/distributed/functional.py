# SPDX-License-Identifier: Apache-2.0
"""The functional collectives that PyTorch looks up by device in C++, where it finds no backend written in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trnlab.frontends.torch.device.dispatch import implement
from trnlab.frontends.torch.pytorch.collectives import group_of

_LIBRARIES: list[torch.library.Library] = []


def _all_gather_into_tensor_out(given: Tensor, group_size: int, group_name: Any, *, out: Tensor) -> Tensor:
    """Done when it returns, so that there is nothing to wait for."""
    group_of(group_name).all_gather_single(out, given.contiguous()).wait()
    return out


def _batch_p2p_ops(
    operations: Sequence[str], peers: Sequence[int], tags: Sequence[int], tensors: Sequence[Tensor], group_name: Any
) -> list[Tensor]:
    """Transfers on their way at the same time. What was received is in the tensor that was given for it; for what was
    sent there is a tensor of nothing, as PyTorch has it. peers: positions within the group."""
    group = group_of(group_name)
    works = [
        group.send([tensor.contiguous()], peer, tag) if operation == "isend" else group.recv([tensor], peer, tag)
        for operation, peer, tag, tensor in zip(operations, peers, tags, tensors, strict=True)
    ]
    for work in works:
        work.wait()
    return [t.new_empty(0) if operation == "isend" else t for operation, t in zip(operations, tensors)]


def install() -> None:
    """Register it for the device, once."""
    if not _LIBRARIES:
        library = torch.library.Library("_c10d_functional", "IMPL")
        implement(library, "all_gather_into_tensor_out", _all_gather_into_tensor_out, "PrivateUse1")
        implement(library, "batch_p2p_ops", _batch_p2p_ops, "PrivateUse1")
        _LIBRARIES.append(library)
