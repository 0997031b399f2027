# SPDX-License-Identifier: Apache-2.0
"""torch_xla.experimental: modules that are elsewhere by now."""

from __future__ import annotations

from trnlab.frontends.torch.xla import runtime as pjrt
from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.stubs import tpu

__all__ = ["eager_mode", "pjrt", "tpu"]


def eager_mode(enable: bool) -> None:
    """Nothing: values are the same either way."""


__getattr__ = refusing(
    "torch_xla.experimental",
    "there are scan.scan, scan_layers.scan_layers and what moved to other modules",
    ("compile", "assume_pure", "flash_attention", "paged_attention", "SpmdFullyShardedDataParallel"),
)
