# SPDX-License-Identifier: Apache-2.0
"""torch_xla.distributed.spmd: marks of how tensors are spread over a mesh of devices.

Marks change no value. One process has one core here, so that a mesh of one device is what they may be made for; a
script that asks the runtime how many devices there are gets such a mesh, and its marks hold nothing back. A larger
mesh is refused (TRN298): several cores are ranks here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from trnlab.errors import UsageError
from trnlab.frontends.torch.xla.names import refusing

__all__ = [
    "HybridMesh",
    "Mesh",
    "ShardingSpec",
    "XLAShardedTensor",
    "clear_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "set_global_mesh",
]
PartitionSpec = Sequence[Any]
XLAShardedTensor = torch.Tensor
_global: list[Any] = [None]


class Mesh:
    """Devices in an array whose dimensions have names. Raises UsageError (TRN298) for more than one device."""

    def __init__(
        self, device_ids: Any, mesh_shape: Sequence[int] | None = None, axis_names: Sequence[str] | None = None
    ) -> None:
        self.device_ids = np.asarray(device_ids).reshape(-1)
        self.mesh_shape = tuple(mesh_shape) if mesh_shape is not None else self.device_ids.shape
        self.axis_names = None if axis_names is None else tuple(axis_names)
        if self.device_ids.size != 1 or prod(self.mesh_shape) != 1:
            raise UsageError(
                "a mesh of torch_xla has the devices of one process",
                code="TRN298",
                limit="1, what xr.global_runtime_device_count() says",
                got=self.mesh_shape,
                remedy="start ranks (trnlab run --ranks), with DistributedDataParallel, fully_shard or DTensor",
            )

    def size(self) -> int:
        """How many devices it has."""
        return 1

    def shape(self) -> dict[str, int]:
        """How many along each dimension, by its name."""
        return dict(zip(self.axis_names or map(str, range(len(self.mesh_shape))), self.mesh_shape, strict=True))

    def get_logical_mesh(self) -> Any:
        """The devices in their array."""
        return self.device_ids.reshape(self.mesh_shape)


class HybridMesh(Mesh):
    """A mesh within machines and across them."""

    def __init__(
        self,
        *,
        ici_mesh_shape: Sequence[int],
        dcn_mesh_shape: Sequence[int] | None = None,
        axis_names: Sequence[str] | None = None,
    ) -> None:
        across = dcn_mesh_shape or (1,) * len(ici_mesh_shape)
        shape = tuple(a * b for a, b in zip(ici_mesh_shape, across, strict=True))
        super().__init__(np.arange(prod(shape)), shape, axis_names)


@dataclass
class ShardingSpec:
    """How the batches of a loader are spread."""

    mesh: Any
    partition_spec: Any
    minibatch: bool = False


def mark_sharding(t: Any, mesh: Mesh, partition_spec: PartitionSpec, *_: Any, **__: Any) -> Any:
    """The tensor as it is. Raises UsageError (TRN298) for a mark of more dimensions than the tensor has."""
    if len(partition_spec) > t.dim():
        raise UsageError(
            "a mark has more dimensions than its tensor",
            code="TRN298",
            limit=t.dim(),
            got=partition_spec,
            remedy="one entry for each dimension, None where it is not spread",
        )
    return t


mark_sharding_with_gradients = enable_manual_sharding = mark_sharding


def clear_sharding(t: Any) -> Any:
    """The tensor as it is."""
    return t


wrap_if_sharded = wrap_as_sharded_tensor = clear_sharding


def apply_xla_patch_to_nn_linear(module: torch.nn.Module, *_: Any, **__: Any) -> torch.nn.Module:
    """The module as it is."""
    return module


def set_global_mesh(mesh: Any) -> None:
    """Remember a mesh."""
    _global[0] = mesh


def get_global_mesh() -> Any:
    """The mesh that was remembered."""
    return _global[0]


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """The devices in a row."""
    return Mesh([0], (1,), None if axis_name is None else (axis_name,))


def set_xla_sharding_profile(*_: Any) -> None:
    """Nothing."""


__getattr__ = refusing(
    "torch_xla.distributed.spmd",
    "marks of a mesh of one device are kept; several cores are ranks",
    (
        "xla_distribute_module",
        "xla_distribute_tensor",
        "auto_policy",
        "ShardingType",
        "ShardedTensor",
        "disable_manual_sharding",
        "annotate_custom_sharding",
    ),
)
