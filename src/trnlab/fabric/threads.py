# SPDX-License-Identifier: Apache-2.0
"""A transport between threads of one process: a queue for each pair of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from trnlab.fabric.execute import execute
from trnlab.fabric.schedule import Schedule

Array = npt.NDArray[Any]
PATIENCE_S = 60.0


class Hub:
    """Where the threads of a world meet; `of(rank)` is the transport of one of them."""

    def __init__(self, ranks: int, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s
        self.queues: dict[tuple[int, int], SimpleQueue[Array]] = {
            (src, dst): SimpleQueue() for src in range(ranks) for dst in range(ranks) if src != dst
        }

    def of(self, rank: int) -> Queues:
        """The transport of `rank`."""
        return Queues(self, rank)


class Queues:
    """One rank's end of a hub. Raises TimeoutError when a partner sends nothing in the hub's `patience_s`."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank = hub, rank

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """Copies go out, then what came in is copied."""
        for peer, message in sends.items():
            self.hub.queues[self.rank, peer].put(message.copy())
        for peer, buffer in receives.items():
            try:
                buffer[:] = self.hub.queues[peer, self.rank].get(timeout=self.hub.patience_s)
            except Empty:
                raise TimeoutError(f"rank {peer} sent nothing to rank {self.rank}") from None


def run(schedule: Schedule, inputs: list[Array], reduction: str = "sum") -> list[Array]:
    """As `values.run`, a thread per rank."""
    hub = Hub(len(inputs))
    with ThreadPoolExecutor(len(inputs)) as pool:
        futures = [
            pool.submit(execute, schedule, rank, np.asarray(each), hub.of(rank), reduction)
            for rank, each in enumerate(inputs)
        ]
        return [future.result() for future in futures]
