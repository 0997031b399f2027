# SPDX-License-Identifier: Apache-2.0
"""torch_xla.distributed and its xla_backend: `init_process_group("xla")` gives the backend `neuron` by that name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from trnlab.frontends.torch.distributed.registration import create
from trnlab.frontends.torch.pytorch.collectives import by_environment, register_backend
from trnlab.frontends.torch.xla import groups
from trnlab.frontends.torch.xla.names import refusing


def register() -> None:
    """Make the backend known, and where its ranks meet: xla:// and pjrt:// are env://."""
    if "xla" not in dist.Backend.backend_list:
        register_backend("xla", create, ["neuron"])
        for scheme in ("xla", "pjrt"):
            dist.register_rendezvous_handler(scheme, _meeting)
        groups.install()


def _meeting(url: str, **named: Any) -> Iterator[Any]:
    """As the environment says; alone where it says nothing."""
    if "MASTER_ADDR" not in os.environ and "RANK" not in os.environ:
        yield dist.HashStore(), 0, 1
        return
    yield from by_environment(url.replace("xla:", "env:").replace("pjrt:", "env:"), **named)


register()


def __getattr__(name: str) -> Any:
    if name == "ProcessGroupXla":
        from trnlab.frontends.torch.distributed.process_group import NeuronProcessGroup

        return NeuronProcessGroup
    return _missing(name)


_missing = refusing(
    "torch_xla.distributed",
    "there are xla_backend, xla_multiprocessing, parallel_loader, spmd and zero_redundancy_optimizer",
)
