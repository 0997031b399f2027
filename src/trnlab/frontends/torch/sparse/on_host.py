# SPDX-License-Identifier: Apache-2.0
"""Operators on sparse tensors that have no form in dense ones: the host computes them, and counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trnlab import host_ops
from trnlab.errors import UsageError
from trnlab.frontends.torch.device.dlpack import as_host, as_neuron
from trnlab.frontends.torch.sparse.parts import COO, SparseComponents, is_sparse, parts_of


def of_host(parts: SparseComponents) -> Tensor:
    """The sparse tensor of the host of parts on the host."""
    if parts.layout is COO:
        return torch.sparse_coo_tensor(
            parts.indices[0], parts.values, parts.shape, check_invariants=False, is_coalesced=parts.merged
        )
    return torch.sparse_compressed_tensor(
        *parts.indices, parts.values, parts.shape, layout=parts.layout, check_invariants=False
    )


def run(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The operator's result, computed by the host. Raises UsageError (TRN150) for what writes to a sparse tensor."""
    named = dict(zip((a.name for a in op._schema.arguments), args)) | kwargs
    if op._schema.is_mutable:
        raise UsageError(
            f"{op._schema.name} would write to a tensor of the device, of which the host has sparse ones by copies",
            code="TRN150",
            remedy="use the form that returns a new tensor, or x.to_dense()",
        )
    host_ops.current().add(op._schema.name)
    hosts = {name: _host(value) for name, value in named.items()}
    return _neuron(op(**hosts))


def _host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _sparse_on_host(value) if is_sparse(value) and value.device.type == "neuron" else as_host(value)
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "neuron" else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(_host, value))
    return value


def _sparse_on_host(tensor: Tensor) -> Tensor:
    parts = parts_of(tensor)
    indices = tuple(as_host(i, reads=True) for i in parts.indices)
    values = as_host(parts.values, reads=True)
    return of_host(SparseComponents(parts.layout, parts.shape, indices, values, parts.split, parts.merged))


def on_device(tensor: Tensor) -> Tensor:
    """A tensor of the host on the device."""
    if not is_sparse(tensor):
        return as_neuron(tensor)
    parts = parts_of(tensor)
    indices = tuple(as_neuron(i.contiguous()) for i in parts.indices)
    return SparseComponents(
        parts.layout, parts.shape, indices, as_neuron(parts.values), parts.split, parts.merged
    ).tensor()


def _neuron(value: Any) -> Any:
    if isinstance(value, Tensor):
        return on_device(value)
    return type(value)(map(_neuron, value)) if isinstance(value, (list, tuple)) else value
