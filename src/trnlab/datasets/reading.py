# SPDX-License-Identifier: Apache-2.0
"""Samples are read ahead, and dealt to ranks as batches, from any place of any epoch on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnlab.datasets.order import BlockSlice, Order, ShuffleGroup
from trnlab.datasets.shards import Shards
from trnlab.errors import RunError, UsageError

Arrays = dict[str, NDArray[Any]]
BLOCK = 8 << 20  # bytes of a read; AWS recommends ranges of 8 or 16 MB
TOGETHER, PREFETCH = 8, 8
CHECKED = ("identity", "lanes", "seed", "together", "block", "sequence")


@dataclass
class Counts:
    """What reading came to so far. waited_s: of it, `first_s` for the first batch."""

    batches: int = 0
    samples: int = 0
    requests: int = 0
    read_bytes: int = 0
    waited_s: float = 0.0
    first_s: float = 0.0


@dataclass(frozen=True)
class ReadBlock:
    """Samples `first` to `last` (exclusive) of a shard: what one read brings."""

    shard: int
    first: int
    last: int


@dataclass
class Reader:
    """Batches of a data set, as rank `rank` of `ranks` gets them.

    Raises UsageError (TRN573) for what cannot be.
    """

    shards: Shards
    batch: int  # samples of a rank's batch; all batches are as large, what is left of an epoch is not used
    rank: int = 0
    ranks: int = 1
    # where samples are rows of single numbers (tokens), how many make a sample; it has one more, the next
    sequence: int | None = None
    seed: int | None = 0  # of the order, None for none
    # parts of an epoch that are walked side by side, a multiple of the ranks, their number where it is None
    lanes: int | None = None
    together: int = TOGETHER  # blocks whose samples are mixed
    prefetch: int = PREFETCH  # reads at once, while the batches before are used; 0 reads when asked
    block: int = BLOCK  # bytes of a read
    epoch: int = 0
    taken: int = 0  # samples of each lane that were used in this epoch

    def __post_init__(self) -> None:
        self.counts = Counts()
        for name, value, least in (
            ("samples of a batch", self.batch, 1),
            ("ranks", self.ranks, 1),
            ("blocks together", self.together, 1),
            ("reads at once", self.prefetch, 0),
            ("bytes of a read", self.block, 1),
            ("lanes", self.lanes or 1, 1),
            ("tokens of a sample", 1 if self.sequence is None else self.sequence, 1),
        ):
            if value < least:
                raise _cannot(f"no data set is read with {value} {name}", value, f"at least {least}")
        if not 0 <= self.rank < self.ranks:
            raise _cannot("there is no such rank", self.rank, f"0 to {self.ranks - 1}")
        if self.sequence is not None and any(field.shape for field in self.shards.fields):
            raise _cannot("rows of several numbers are samples already", self.shards.fields, "no sequence")
        self._fits()

    def _fits(self) -> None:
        """Check that the ranks share the lanes, and these a batch."""
        lanes = self._lanes
        if lanes % self.ranks or self.batch * self.ranks % lanes:
            raise _cannot(
                f"{lanes} lanes are not shared by {self.ranks} ranks with {self.batch} samples each",
                lanes,
                "lanes are a multiple of the ranks, and samples of all ranks a multiple of the lanes",
            )
        if len(self) < 1:
            raise _cannot(
                f"an epoch of {self.order.samples:,} samples has no batch of {self.batch * self.ranks:,}",
                self.batch,
                f"{self.order.lane_samples:,} samples of each of {lanes} lanes",
            )

    # -- what there is ------------------------------------------------------------------------------------------
    @property
    def _lanes(self) -> int:
        return self.lanes or self.ranks

    @property
    def share(self) -> int:
        """Samples of a global batch that come from each lane."""
        return self.batch * self.ranks // self._lanes

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self.order.lane_samples // self.share

    @property
    def unused(self) -> int:
        """Samples that an epoch leaves out, because they make no whole batch; others in each epoch."""
        return self.order.samples - len(self) * self.batch * self.ranks

    @cached_property
    def blocks(self) -> tuple[ReadBlock, ...]:
        """The reads of which an epoch is made, in the order of the shards: of whole pieces, about `block` bytes."""
        pieces = max(1, self.block // max(1, self.shards.piece_rows * self.shards.row_bytes))
        rows, found = pieces * self.shards.piece_rows, []
        if self.block < self.shards.piece_rows * self.shards.row_bytes:
            rows = max(1, self.block // self.shards.row_bytes)
        step = self.sequence or 1
        for number, shard in enumerate(self.shards.shards):
            samples = max(0, (shard.rows - 1) // step) if self.sequence else shard.rows
            each = max(1, rows // step)
            found += [ReadBlock(number, first, min(first + each, samples)) for first in range(0, samples, each)]
        return tuple(found)

    @cached_property
    def order(self) -> Order:
        """In which order samples are used."""
        counts = tuple(block.last - block.first for block in self.blocks)
        return Order(counts, self._lanes, self.together, self.seed)

    @property
    def batch_bytes(self) -> int:
        """Bytes of the rows of a batch."""
        return self.batch * self.shards.row_bytes * (self.sequence or 1)

    @property
    def request_bytes(self) -> float:
        """Bytes of a read of one field, on average."""
        return self.shards.nbytes / (len(self.blocks) * len(self.shards.fields))

    @property
    def group_bytes(self) -> float:
        """Bytes that are read before the first batch, on average: a group of each lane of the rank."""
        blocks = min(self.together, len(self.blocks) / self._lanes) * self._lanes / self.ranks
        return self.shards.nbytes / len(self.blocks) * blocks

    # -- reading ------------------------------------------------------------------------------------------------
    def until(self, epochs: int) -> Iterator[Arrays]:
        """The batches from where the reader is, to the end of so many epochs; the next ones are on their way.

        Raises RunError: TRN570, TRN572.
        """
        self._past_the_end()
        pool = ThreadPoolExecutor(self.prefetch, "data") if self.prefetch else None
        first, each = self.rank * self._lanes // self.ranks, self._lanes // self.ranks
        lanes = [_Lane(self, number, epochs, pool) for number in range(first, first + each)]
        try:
            while self.epoch < epochs:
                started = time.perf_counter()
                parts = [lane.take(self.share) for lane in lanes]
                batch = _joined(parts)
                self._count(time.perf_counter() - started)
                yield batch
        finally:
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)

    def _count(self, waited: float) -> None:
        """A batch was given away: what it took, and where the reader is now."""
        c = self.counts
        c.first_s = c.first_s if c.batches else waited
        c.batches, c.samples, c.waited_s = c.batches + 1, c.samples + self.batch, c.waited_s + waited
        self.taken += self.share
        self._past_the_end()

    def _past_the_end(self) -> None:
        if self.taken + self.share > self.order.lane_samples:
            self.epoch, self.taken = self.epoch + 1, 0

    def groups(self, lane: int, epochs: int) -> Iterator[tuple[int, ShuffleGroup, int, int]]:
        """What a lane reads from here on: epoch, group, and which places of its order are used."""
        taken = self.taken
        for epoch in range(self.epoch, epochs):
            most = taken + (self.order.lane_samples - taken) // self.share * self.share
            for group in self.order.groups(epoch, lane):
                if group.before + group.count > taken and group.before < most:
                    yield epoch, group, max(0, taken - group.before), min(group.count, most - group.before)
            taken = 0

    def fetched(self, piece: BlockSlice) -> Arrays:
        """The samples of a piece. Raises RunError: TRN570, TRN572."""
        block, step = self.blocks[piece.block], self.sequence
        if step is None:
            return self.shards.read(block.shard, block.first + piece.first, block.first + piece.last)
        first, last = self._rows(piece)
        found = self.shards.read(block.shard, first, last)
        windows = {k: np.lib.stride_tricks.sliding_window_view(v, step + 1)[::step] for k, v in found.items()}
        return dict(windows)

    def _rows(self, piece: BlockSlice) -> tuple[int, int]:
        block, step = self.blocks[piece.block], self.sequence or 1
        first, last = block.first + piece.first, block.first + piece.last
        return first * step, last * step + (self.sequence is not None)

    def asked(self, piece: BlockSlice) -> tuple[int, int]:
        """Requests and bytes of a piece."""
        shard = self.blocks[piece.block].shard
        found = [0, 0]
        for field in self.shards.fields:
            known = self.shards.shards[shard].files[field.name].crc32 is not None
            low, high = self.shards.span(shard, *self._rows(piece), known)
            found = [found[0] + 1, found[1] + (high - low) * field.row_bytes]
        return found[0], found[1]

    # -- where it is --------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Where the reader is, the same for all ranks; any number of ranks that shares the lanes goes on from it."""
        return {"epoch": self.epoch, "taken": self.taken, **self._fixed()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another reader was. Lanes are those of the state.

        Raises RunError (TRN573) where the data set, or what decides its order, is another.
        """
        if self.lanes is None:
            self.lanes = int(state.get("lanes", 1))
            self.__dict__.pop("order", None)  # that of other lanes
            self._fits()
        here = self._fixed()
        for name in CHECKED:
            if state.get(name) != here[name]:
                raise RunError(
                    f"the state is of another data set or order: its {name} differs",
                    code="TRN573",
                    got=here[name],
                    limit=state.get(name),
                    remedy="read the same files in the same way, or begin anew",
                )
        self.epoch, self.taken = int(state["epoch"]), int(state["taken"])

    def _fixed(self) -> dict[str, Any]:
        return {
            "identity": self.shards.identity,
            "lanes": self._lanes,
            "seed": self.seed,
            "together": self.together,
            "block": self.block,
            "sequence": self.sequence,
        }


class _Lane:
    """A lane while it is walked: its samples that were read, and the reads that are on their way."""

    def __init__(self, reader: Reader, number: int, epochs: int, pool: ThreadPoolExecutor | None) -> None:
        self._reader, self._number, self._pool = reader, number, pool
        self._groups = reader.groups(number, epochs)
        self._ahead: deque[tuple[ShuffleGroup, NDArray[np.int64], list[Callable[[], Arrays]]]] = deque()
        self._arrays: Arrays = {}
        self._places = np.zeros(0, np.int64)
        self._begin()

    def take(self, count: int) -> Arrays:
        """So many samples, in their order."""
        parts = []
        while count:
            if not len(self._places):
                self._next()
            now, self._places = self._places[:count], self._places[count:]
            parts.append({name: array[now] for name, array in self._arrays.items()})
            count -= len(now)
        return _joined(parts)

    def _begin(self) -> None:
        """Ask for the next group."""
        found = next(self._groups, None)
        if found is None:
            return
        epoch, group, first, last = found
        places = self._reader.order.mixed(epoch, self._number, group)[first:last]
        reads = [self._read(piece) for piece in group.pieces]
        self._ahead.append((group, places, reads))

    def _read(self, piece: BlockSlice) -> Callable[[], Arrays]:
        if self._pool is None:
            return lambda: self._reader.fetched(piece)
        return self._pool.submit(self._reader.fetched, piece).result

    def _next(self) -> None:
        """Wait for the group that was asked for, and ask for the one behind it."""
        group, self._places, reads = self._ahead.popleft()
        self._begin()
        self._arrays = _joined([read() for read in reads])
        counts = self._reader.counts
        for piece in group.pieces:
            requests, size = self._reader.asked(piece)
            counts.requests, counts.read_bytes = counts.requests + requests, counts.read_bytes + size


def _joined(parts: list[Arrays]) -> Arrays:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _cannot(what: str, got: object, limit: str) -> UsageError:
    return UsageError(what, code="TRN573", got=got, limit=limit, remedy="see docs/data.md")
