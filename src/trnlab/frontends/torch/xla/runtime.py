# SPDX-License-Identifier: Apache-2.0
"""torch_xla.runtime: one process with one device."""

from __future__ import annotations

from typing import Any

from trnlab.frontends.torch.xla.names import refusing


def device_type() -> str:
    """What scripts for Trainium compare it with."""
    return "NEURON"


def using_pjrt() -> bool:
    """Yes, as every version since 2.0."""
    return True


def world_size() -> int:
    """One."""
    return 1


process_count = global_device_count = global_runtime_device_count = addressable_device_count = local_process_count = (
    world_size
)


def global_ordinal() -> int:
    """Zero."""
    return 0


local_ordinal = process_index = global_ordinal


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Nothing: trnlab's cache of programs is chosen with --cache."""


def use_spmd(*_: Any, **__: Any) -> None:
    """Nothing: there is one device to spread over."""


def is_spmd() -> bool:
    """No."""
    return False


__getattr__ = refusing("torch_xla.runtime", "there is one process with one device")
