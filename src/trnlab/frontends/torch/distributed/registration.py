# SPDX-License-Identifier: Apache-2.0
"""Make the backend known to PyTorch, without loading what it needs before somebody uses it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from trnlab.frontends.torch.distributed import draws_of_shards


def _create(options: Any, backend_options: Any = None) -> Any:
    from trnlab.frontends.torch.distributed import process_group

    return process_group.create(options, backend_options)


def register() -> None:
    """Make `init_process_group("neuron")` work, and neuron tensors take that backend where no other is named."""
    if dist.is_available() and "neuron" not in dist.Backend.backend_list:
        dist.Backend.register_backend("neuron", _create, extended_api=True, devices=["neuron"])
        draws_of_shards.install()
