# SPDX-License-Identifier: Apache-2.0
"""Process groups of a rank that is followed alone: what is asked for outside of compiled code is written down.

Nobody answers: small tensors that a collective fills from all ranks get this rank's values for each of them, since
PyTorch compares and unpacks such; all others stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnlab.collectives import Collective
from trnlab.frontends.torch.device import dlpack
from trnlab.frontends.torch.distributed import process_group
from trnlab.frontends.torch.distributed.flat import Flat
from trnlab.frontends.torch.distributed.jobs import PendingCall
from trnlab.frontends.torch.distributed.process_group import NeuronProcessGroup
from trnlab.frontends.torch.distributed.transport import GroupExchange, GroupTransport
from trnlab.runtime.communication import UntimedCollective

SMALL = 1 << 16  # bytes up to which values are handed on


class Ledger:
    """What the device's tensors were exchanged by since this was last asked."""

    def __init__(self) -> None:
        self._asked: list[UntimedCollective] = []

    def note(self, asked: UntimedCollective) -> None:
        """One more."""
        self._asked.append(asked)

    def take(self) -> list[UntimedCollective]:
        """All, in order, once."""
        found, self._asked = self._asked, []
        return found


class LedgerTransport(GroupTransport):
    """A transport of a group whose other ranks do not exist: everything is over at once, and in the ledger.

    Tensors of the host are not counted, as in a run; a barrier moves nothing.
    """

    reads = False

    def __init__(self, ranks: Sequence[int], rank: int, ledger: Ledger) -> None:
        super().__init__(rank)
        self._ranks, self._ledger, self._asked = tuple(ranks), ledger, 0

    @property
    def num_requests(self) -> int:
        """See `GroupTransport`, as all others."""
        return self._asked

    def collective(self, exchange: GroupExchange) -> list[PendingCall]:
        """In the ledger; of the values only small ones are handed on."""
        self._asked += 1
        asked, source = exchange.request, exchange.source
        if exchange.purpose:
            buffer = max(source.nbytes, asked.count(source.elements) * source.tensors[0].element_size())
            self._note(asked, exchange.purpose, source, source.nbytes, buffer)
        self._hand_on(exchange)
        return []

    def barrier(self) -> list[PendingCall]:
        """All are there."""
        self._asked += 1
        return []

    def join(self) -> list[PendingCall]:
        """All have."""
        return self.barrier()

    def send(self, given: Flat, target: int, tag: int, purpose: str) -> list[PendingCall]:
        """This rank gives the message."""
        if purpose:
            self._note(_message(self.rank, target), purpose, given, given.nbytes, given.nbytes)
        return []

    def receive(self, result: Flat, source: int | None, tag: int, purpose: str) -> list[PendingCall]:
        """This rank gives nothing. From whoever sends first: from the next position (assumed: nobody knows who it
        is)."""
        if purpose:
            after = self._ranks[(self._ranks.index(self.rank) + 1) % len(self._ranks)]
            message = _message(after if source is None else source, self.rank)
            self._note(message, purpose, result, 0, result.nbytes)
        return []

    def meet(self, limit_s: float | None) -> None:
        """All are there."""
        self.barrier()

    def set_timeout(self, seconds: float) -> None:
        """Nobody waits."""

    def drain(self) -> None:
        """Nothing is pending."""

    def close(self) -> None:
        """There is no connection."""

    def _note(self, request: Collective, purpose: str, tensors: Flat, nbytes: int, buffer: int) -> None:
        dlpack.before_host(tensors.tensors[0], False)
        self._ledger.note(UntimedCollective(request, purpose, nbytes, buffer))

    def _hand_on(self, exchange: GroupExchange) -> None:
        """Put the values of a small tensor wherever the other ranks' would be, and what this rank scatters where its
        own part goes."""
        source, result, kind = exchange.source, exchange.result, exchange.request.kind
        times = len(self._ranks) if kind == "all_gather" else 1
        scatters = kind == "collective_broadcast" and self._ranks[exchange.root] == self.rank
        if not result.tensors or not (scatters or kind == "all_gather"):
            return
        given = source.nbytes if kind == "all_gather" else result.tensors[0].nbytes
        if 0 < given <= SMALL and source.has_memory and result.has_memory:
            result.write(np.tile(source.read(), times))


def _message(source: int, target: int) -> Collective:
    return Collective("collective_permute", pairs=((source, target),))


def created(options: Any, rank: int, size: int, ledger: Ledger) -> NeuronProcessGroup:
    """What `init_process_group` and `new_group` make of a rank that is followed alone."""
    process_group.install()
    ranks = process_group.ranks_of(options)
    return NeuronProcessGroup(LedgerTransport(ranks, rank, ledger), ranks, size, options.group_id)
