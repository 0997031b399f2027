# SPDX-License-Identifier: Apache-2.0
"""Batches of a data set in a store as tensors of PyTorch, for the ranks of a job; the run hears what they took."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from trnlab import datasets
from trnlab.datasets.reading import BLOCK, PREFETCH, TOGETHER, Reader
from trnlab.datasets.shards import Shards
from trnlab.datasets.writing import SHARD
from trnlab.runtime import session
from trnlab.storage import open_store

if TYPE_CHECKING:
    from trnlab.chips.catalog import Target
    from trnlab.fleet.reliability.data_cost import DataCost

Batch: TypeAlias = Tensor | tuple[Tensor, ...]

heard: list[Callable[[Loader], object]] = []  # asked for each batch that a loader gives


class Loader:
    """Batches of a `Reader`: a tensor, or one for each field; of tokens, the sample and what follows in each place.

    Iterating gives what is left of the epoch, and then the next one; `checkpoint.Run.batches` takes several. It knows
    where it is: `state_dict`.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._told: Any = None

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.reader)

    def __iter__(self) -> Iterator[Batch]:
        return self.until(self.reader.epoch + 1)

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return self.reader.epoch

    def until(self, epochs: int) -> Iterator[Batch]:
        """The batches up to the end of so many epochs. Raises RunError: TRN570, TRN572."""
        batches, counts = self.reader.until(epochs), self.reader.counts
        while True:
            before = counts.waited_s
            batch = next(batches, None)
            if batch is None:
                return
            self._tell(counts.waited_s - before)
            for hears in heard:
                hears(self)
            yield self._tensors(batch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is; see `Reader.state_dict`."""
        return self.reader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another one was. Raises RunError (TRN573) for one of another data set or order."""
        self.reader.load_state_dict(state)

    def cost(
        self, step_s: float, target: Target, instances: int = 1, batches: int = 1, ranks: int | None = None
    ) -> DataCost | None:
        """What reading costs in steps of so many seconds on these instances, from where the data set is; None where
        that is no store with figures.

        batches: that a step takes of it. ranks: that read on the instances, those of the loader where None.
        """
        from trnlab.fleet.reliability import data_cost  # a planner takes a while

        kind = data_cost.kind_of(self.reader.shards.store.url)
        if kind is None:
            return None
        return data_cost.cost(kind, data_cost.reads_of(self.reader, batches, ranks), step_s, target, instances)

    def record(self, step_s: float | None = None) -> dict[str, Any]:
        """What the reading came to, for the summary of a run; with the simulated seconds of a step, what it costs."""
        r, store, here = self.reader, self.reader.shards.store, session.active()
        cost = None if step_s is None or here is None else self.cost(step_s, here.target, here.instances)
        simulated = {} if cost is None else {"simulated": cost.as_json()}
        return {
            "place": store.url,
            "data_bytes": r.shards.nbytes,
            "shards": len(r.shards.shards),
            "ranks": r.ranks,
            "batch": r.batch,
            "epoch_batches": len(r),
            "unused": r.unused,
            "prefetch": r.prefetch,
            "together": r.together,
            "retries": store.usage.retries,
            **asdict(r.counts),
            **simulated,
        }

    def _tell(self, waited: float) -> None:
        now = session.active()
        run = None if now is None else now.run
        if run is None:
            return
        run.waited(waited)
        if self._told is not run:
            self._told = run
            run.reads(self.record)

    def _tensors(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> Batch:
        found = [_tensor(array) for array in batch.values()]
        if self.reader.sequence is not None:
            found = [part.contiguous() for tokens in found for part in (tokens[:, :-1], tokens[:, 1:])]
        return found[0] if len(found) == 1 else tuple(found)


def loader(
    place: str,
    batch: int,
    *,
    sequence: int | None = None,
    dtype: str | None = None,
    seed: int | None = 0,
    rank: int | None = None,
    ranks: int | None = None,
    lanes: int | None = None,
    together: int = TOGETHER,
    prefetch: int = PREFETCH,
    block: int = BLOCK,
) -> Loader:
    """The batches of the data set in a folder or at a URL (`file://`, `s3://`), for this rank of the job.

    rank, ranks: what RANK and WORLD_SIZE say where None. dtype: of the numbers in `.bin` files. The rest is that of
    `datasets.Reader`. Unsigned integers of 16 bits and more come as int64, which PyTorch computes with.
    Raises UsageError: TRN520 for a URL of no known kind, TRN573 for what cannot be; RunError: TRN570, TRN571.
    """
    rank = int(os.environ.get("RANK") or 0) if rank is None else rank
    ranks = int(os.environ.get("WORLD_SIZE") or 1) if ranks is None else ranks
    shards = Shards.opened(open_store(place), dtype)
    return Loader(Reader(shards, batch, rank, ranks, sequence, seed, lanes, together, prefetch, block))


def write(place: str, parts: Iterable[Mapping[str, Any]], shard_bytes: int = SHARD) -> None:
    """Write a data set, with an index and checksums, to a folder or URL.

    parts: samples by field, as arrays or tensors with as many rows in each. shard_bytes: of a shard's files, about.
    Raises UsageError (TRN573), RunError (TRN570); see `datasets.write`.
    """
    datasets.write(open_store(place), (_arrays(part) for part in parts), shard_bytes)


def _arrays(part: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: each.numpy() if isinstance(each, Tensor) else np.asarray(each) for name, each in part.items()}


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False)))
