# SPDX-License-Identifier: Apache-2.0
"""torch_xla._internal, its pjrt and neuron: what the vendor's tests and launchers ask."""

from __future__ import annotations

from trnlab.frontends.torch.xla import ranks
from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.stubs import tpu

__all__ = ["num_local_processes", "tpu"]


def num_local_processes() -> int:
    """How many ranks this machine has."""
    return ranks.local_world_size()


__getattr__ = refusing(
    "torch_xla._internal",
    "ranks are started by torchrun, trnlab run --ranks or xmp.spawn",
    ("_merge_replica_results", "_run_thread_per_device", "initialize_multiprocess", "run_multiprocess", "spawn"),
)
