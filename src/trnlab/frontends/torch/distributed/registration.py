# SPDX-License-Identifier: Apache-2.0
"""Make the backend known to PyTorch, without loading what it needs before somebody uses it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import torch.distributed as dist

from trnlab.frontends.torch.device import pinned
from trnlab.frontends.torch.distributed import draws_of_shards


def create(options: Any, backend_options: Any = None) -> Any:
    """The process group that PyTorch asks for."""
    from trnlab.frontends.torch.distributed import process_group

    return process_group.create(options, backend_options)


def register() -> None:
    """Make `init_process_group("neuron")` work, and neuron tensors take that backend where no other is named."""
    if dist.is_available() and "neuron" not in dist.Backend.backend_list:
        from trnlab.frontends.torch.pytorch.collectives import let_groups_say_their_device, register_backend

        register_backend("neuron", create, ["neuron"])
        let_groups_say_their_device()
        draws_of_shards.install()
        pinned.install()
        rendezvous: Any = import_module("torch.distributed.rendezvous")  # a function has its name, too
        rendezvous.TCPStore = _unmet(rendezvous.TCPStore)


def _unmet(store: Callable[..., Any]) -> Callable[..., Any]:
    """A store that does not wait until all ranks have come: it knows only how many did not. The backend waits by
    itself, and knows which (`watch.PeerWatch.all_there`)."""

    @wraps(store)
    def made(*args: Any, **named: Any) -> Any:
        from trnlab.runtime import session

        if os.environ.get("TRNLAB_TARGET") or session.active() is not None:
            named.setdefault("wait_for_workers", False)
        return store(*args, **named)

    return made
