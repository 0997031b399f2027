# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's tensors, generators, modules and files are made of below their public classes."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch
from torch import serialization
from torch.optim import optimizer
from torch.utils import checkpoint

Generator: Any = torch._C.Generator  # whatever `torch.Generator` is by now
Future: Any = torch._C.Future
data_of_tensors: Any = torch._C.TensorBase.data  # type: ignore[attr-defined]  # the attribute's descriptor
to_dlpack: Any = torch._C._to_dlpack
from_dlpack: Any = torch._C._from_dlpack
conjugated: Any = torch._conj  # a view
negated: Any = torch._neg_view
uses_of_storage: Any = torch._C._storage_Use_Count  # type: ignore[attr-defined]  # by its address
safe_softmax: Any = torch._safe_softmax  # a softmax whose rows of -inf are zeros
backward_number: Any = torch.autograd._get_sequence_nr  # of the next operator that autograd notes
node_of_backward: Any = torch._C._current_autograd_node  # that runs now, None outside of a backward pass
inductor: Any = torch._TorchCompileInductorWrapper  # what `torch.compile` takes where nobody names a backend
BatchNorms: Any = torch.nn.modules.batchnorm._BatchNorm  # what all batch normalizations build on
hooks_before: dict[int, Any] = optimizer._global_optimizer_pre_hooks  # of every optimizer's step
hooks_after: dict[int, Any] = optimizer._global_optimizer_post_hooks
# Where PyTorch itself finds them: what writes an archive of `torch.save`, what it calls for that, and the context in
# which checkpointing computes again.
WRITERS: tuple[Any, str] = torch._C, "PyTorchFileWriter"
SAVING: tuple[Any, str] = serialization, "_save"
RECOMPUTING: tuple[Any, str] = checkpoint, "_recomputation_hook"
BACKWARD: tuple[Any, str] = torch.autograd, "_engine_run_backward"
CALL_OF_MODULES: CodeType = torch.nn.Module._call_impl.__code__
_around_backward: list[Any] = []


def printed_by(replace: Any) -> None:
    """Let `replace(original)` be what makes the text of a tensor's values."""
    torch._tensor_str._tensor_str = replace(torch._tensor_str._tensor_str)


def descriptor_of_tensors(name: str) -> Any:
    """An attribute of all tensors, as the class has it."""
    return vars(torch._C.TensorBase)[name]


def wrap_backward(wrapped: Any) -> None:
    """Have `wrapped(run)` in the place of what runs a backward pass. Once for each process and wrapper."""
    owner, name = BACKWARD
    if wrapped not in _around_backward:
        _around_backward.append(wrapped)
        setattr(owner, name, wrapped(getattr(owner, name)))
