# SPDX-License-Identifier: Apache-2.0
"""torch_xla.runtime: ranks of one device each."""

from __future__ import annotations

import os
from typing import Any

from trnlab.frontends.torch.xla import collectives, ranks
from trnlab.frontends.torch.xla.names import refusing

__all__ = [
    "addressable_device_count",
    "addressable_runtime_device_count",
    "device_type",
    "get_master_ip",
    "get_num_cached_compilation_graph",
    "global_device_count",
    "global_ordinal",
    "global_runtime_device_count",
    "host_index",
    "initialize_cache",
    "is_bf16_supported",
    "is_spmd",
    "local_device_count",
    "local_ordinal",
    "local_process_count",
    "process_count",
    "process_index",
    "runtime_device_attributes",
    "set_device_type",
    "use_spmd",
    "using_pjrt",
    "world_size",
]


def device_type() -> str:
    """What scripts for Trainium compare it with."""
    return "NEURON"


def set_device_type(pjrt_device: str) -> None:
    """Nothing: there is one kind."""


def using_pjrt() -> bool:
    """Yes, as every version since 2.0."""
    return True


def is_bf16_supported() -> bool:
    """Yes."""
    return True


def world_size() -> int:
    """How many ranks there are."""
    return ranks.world_size()


process_count = global_device_count = world_size


def local_process_count() -> int:
    """How many ranks this machine has."""
    return ranks.local_world_size()


local_device_count = local_process_count


def addressable_device_count() -> int:
    """The devices of this process: one."""
    return 1


global_runtime_device_count = addressable_runtime_device_count = addressable_device_count


def global_ordinal() -> int:
    """Which rank this is."""
    return ranks.ordinal()


process_index = global_ordinal


def local_ordinal() -> int:
    """Which of this machine's ranks it is."""
    return ranks.local_ordinal()


def host_index() -> int:
    """Which machine this is."""
    return ranks.ordinal() // ranks.local_world_size()


def runtime_device_attributes(device: str) -> dict[str, object]:
    """The number of a core."""
    return {"core": ranks.ordinal()}


def get_master_ip() -> str:
    """Where ranks meet."""
    return os.environ.get("MASTER_ADDR") or "127.0.0.1"


def broadcast_master_param(model: Any) -> None:
    """Parameters of the first rank, in all."""
    collectives.broadcast_master_param(model)


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Nothing: trnlab's cache of programs is chosen with --cache."""


def get_num_cached_compilation_graph() -> int:
    """None are kept of torch_xla's."""
    return 0


def use_spmd(*_: Any, **__: Any) -> None:
    """Nothing: there is one device to spread over."""


def is_spmd() -> bool:
    """No."""
    return False


__getattr__ = refusing(
    "torch_xla.runtime", "there are ranks of one device each", ("global_runtime_device_attributes",), __all__
)
