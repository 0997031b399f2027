# SPDX-License-Identifier: Apache-2.0
"""What ranks write into the store of torch.distributed is of one attempt of a job only."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist


def of_attempt(store: Any) -> Any:
    """The store, apart from what ranks of the job wrote into it before torchrun started them again.

    torchrun keeps one store for all attempts: answers, addresses of connections and notes of ranks that are gone.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return store if attempt == "0" else dist.PrefixStore(f"attempt {attempt}", store)
