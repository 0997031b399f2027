# SPDX-License-Identifier: Apache-2.0
"""torch_xla.utils.serialization: nested values with each tensor in a file of its own.

    path                     the value, with a TensorReference in each tensor's place
    path.tensors/tensor_0.pt

Files of the vendor's stack are read, and it reads those that are written here.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from trnlab.frontends.torch.xla import arena, collectives
from trnlab.frontends.torch.xla.names import refusing

__all__ = ["TensorReference", "load", "save"]


class TensorReference:
    """What stands for a tensor that has a file of its own: its number."""

    def __init__(self, tid: int) -> None:
        self.tid = tid


TensorReference.__module__ = "torch_xla.utils.serialization"  # as it is named in files


def _get_tensors_folder(path: str) -> str:
    return f"{path}.tensors"


def _get_tensor_file(path: str, tid: int) -> str:
    return os.path.join(path, f"tensor_{tid}.pt")


def _rewrite_data(path: str, data: Any, save_tensors: bool) -> Any:
    def written(tensors: list[torch.Tensor]) -> list[TensorReference]:
        if save_tensors:
            os.makedirs(path, exist_ok=True)
            for number, tensor in enumerate(tensors):
                torch.save(tensor.detach().cpu(), _get_tensor_file(path, number))
        return [TensorReference(number) for number in range(len(tensors))]

    return arena.ToXlaTensorArena(written, arena.on_device).transform(data)


def save(data: Any, path: str, master_only: bool = True, global_master: bool = False) -> None:
    """Write it, by the first rank of each machine or of all; all ranks meet afterwards."""
    writes = not master_only or collectives.is_master_ordinal(local=not global_master)
    rewritten = _rewrite_data(_get_tensors_folder(path), data, writes)
    if writes:
        torch.save(rewritten, path)
    collectives.rendezvous("xm_save")


def load(path: str) -> Any:
    """Read it, with its tensors on the host."""
    with torch.serialization.safe_globals([TensorReference]):
        referring = torch.load(path, map_location="cpu")
    folder = _get_tensors_folder(path)
    return arena.rewritten(
        referring,
        lambda part: type(part).__name__ == "TensorReference",
        lambda part: torch.load(_get_tensor_file(folder, part.tid), map_location="cpu"),
    )


__getattr__ = refusing("torch_xla.utils.serialization", "there are save and load")
