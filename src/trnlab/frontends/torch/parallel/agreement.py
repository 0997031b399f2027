# SPDX-License-Identifier: Apache-2.0
"""Answers that all ranks of a job have in common, through the store of torch.distributed, where one is initialised.

No collective: those are counted and timed as the program's own. Each question is two or three requests of a rank.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch.distributed as dist

from trnlab.frontends.torch.parallel.attempts import of_attempt
from trnlab.frontends.torch.pytorch.collectives import default_store

_questions = itertools.count()


class Votes:
    """See `storage.checkpoints.Agreement`; `store` is one that all ranks share."""

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks

    def first(self, value: str) -> str:
        """What rank 0 gave. Raises torch.distributed's error where rank 0 does not answer."""
        key = f"trnlab/checkpoints/{next(_questions)}"
        if self._rank == 0:
            self._store.set(key, value)
        return str(self._store.get(key).decode())

    def all(self, ok: bool) -> bool:
        """Whether every rank gave true. Raises torch.distributed's error where one does not answer."""
        key = f"trnlab/checkpoints/{next(_questions)}"
        if not ok:
            self._store.add(f"{key}/no", 1)
        if self._store.add(f"{key}/asked", 1) == self._ranks:
            self._store.set(f"{key}/all", "1")
        self._store.wait([f"{key}/all"])
        return int(self._store.add(f"{key}/no", 0)) == 0


def among_ranks(rank: int, ranks: int) -> Votes | None:
    """How the ranks of this job agree; None for one rank, and where the script has not initialised a group yet."""
    if ranks == 1 or not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() != ranks:
        return None
    store = default_store()
    return Votes(of_attempt(store), rank, ranks) if store is not None else None
