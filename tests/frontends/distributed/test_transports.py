# SPDX-License-Identifier: Apache-2.0
"""A process group over the transport that only writes down: what is counted, what is handed on, what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from trnlab.errors import CollectiveError
from trnlab.frontends.torch.check.counting import SMALL, Ledger, LedgerTransport
from trnlab.frontends.torch.distributed.flat import Flat
from trnlab.frontends.torch.distributed.process_group import NeuronProcessGroup

pytestmark = pytest.mark.torch
RANKS, HERE = (4, 5, 6), 5  # of a job of eight; this rank is the second of its group
ROOT = SimpleNamespace(rootRank=1)


@pytest.fixture
def ledger():
    return Ledger()


@pytest.fixture
def group(ledger):
    return NeuronProcessGroup(LedgerTransport(RANKS, HERE, ledger), RANKS, 8, "some")


def floats(count, device="neuron"):
    return torch.zeros(count, device=device)


def noted(ledger):
    return [(a.request.kind, a.nbytes, a.buffer) for a in ledger.take()]


def test_what_a_collective_gives_and_its_larger_buffer_are_written_down(group, ledger):
    group.allreduce([floats(6)])
    group.allreduce_coalesced([floats(6), floats(2)])
    group.reduce_scatter_single(floats(2), floats(6))
    group.reduce_scatter([floats(2)], [[floats(1), floats(2), floats(0)]])
    group.all_gather_single(floats(6), floats(2))
    group.allgather([[floats(1), floats(2), floats(4)]], [floats(2)])
    group.gather([], [floats(2)], SimpleNamespace(rootRank=0))
    group.scatter([floats(2)], [], SimpleNamespace(rootRank=0))
    group.all_to_all_single(floats(5), floats(3), [1, 1, 3], [3, 0, 0])
    assert noted(ledger) == [
        ("all_reduce", 24, 24),
        ("all_reduce", 32, 32),
        ("reduce_scatter", 24, 24),
        ("reduce_scatter", 24, 24),
        ("all_gather", 8, 24),
        ("all_gather", 16, 48),
        ("all_gather", 8, 24),
        ("collective_broadcast", 24, 24),
        ("all_to_all", 12, 20),
    ]


def test_messages_are_between_two_ranks_and_who_receives_gives_nothing(group, ledger):
    group.send([floats(3)], 2)
    group.recv([floats(3)], 0)
    group.recv_anysource([floats(3)])
    found = ledger.take()
    assert [(a.request.pairs, a.nbytes, a.buffer) for a in found] == [
        (((5, 6),), 12, 12),
        (((4, 5),), 0, 12),
        (((6, 5),), 0, 12),
    ]


def test_tensors_of_the_host_are_not_counted_and_calls_are(group, ledger):
    group.allreduce([floats(3, "cpu")])
    group.barrier()
    group.monitored_barrier()
    assert ledger.take() == []
    assert group._get_sequence_number_for_group() == 3


def test_small_values_are_handed_on_and_nothing_of_large_ones_is_read(group, monkeypatch):
    out, parts = floats(6, "cpu"), [floats(1, "cpu"), floats(2, "cpu"), floats(3, "cpu")]
    group.all_gather_single(out, torch.tensor([1.0, 2.0]))
    assert out.tolist() == [1, 2, 1, 2, 1, 2]
    group.allgather([parts], [torch.tensor([1.0, 2.0])])
    assert [part.tolist() for part in parts] == [[1], [1, 2], [1, 2, 0]]
    mine = floats(1, "cpu")
    group.scatter([mine], [[torch.tensor([float(i)]) for i in range(3)]], ROOT)
    assert mine.tolist() == [1]
    monkeypatch.setattr(Flat, "read", lambda self: pytest.fail("values were read"))
    group.all_gather_single(floats(SMALL * 3, "cpu"), floats(SMALL, "cpu"))
    group.broadcast([floats(2, "cpu")], ROOT)
    group.all_gather_single(torch.empty(6, device="meta"), torch.empty(2, device="meta"))


def test_what_a_run_refuses_a_followed_rank_refuses(group, ledger):
    for ask in (
        lambda: group.reduce_scatter_single(floats(3), floats(6)),
        lambda: group.allgather([[floats(2)]], [floats(2)]),
        lambda: group.gather([[floats(2), floats(2), floats(1)]], [floats(2)], ROOT),
        lambda: group.all_to_all_single(floats(3), floats(6), [], []),
        lambda: group.alltoall([floats(2)], [floats(2)]),
    ):
        with pytest.raises(CollectiveError) as raised:
            ask()
        assert raised.value.code == "TRN277"
    with pytest.raises(CollectiveError) as raised:
        group.allreduce([floats(3, "cpu").to_sparse()], dist.AllreduceOptions())
    assert raised.value.code == "TRN275"
    assert ledger.take() == []


def test_a_buffer_pads_between_its_tensors():
    tensors = [torch.tensor([1.0]), torch.tensor([]), torch.tensor([2.0, 3.0])]
    padded = Flat(tensors, each=3)
    assert (padded.elements, padded.nbytes) == (9, 36)
    assert padded.read().tolist() == [1, 0, 0, 0, 0, 0, 2, 3, 0]
    padded.write(np.arange(9, dtype=np.float32))
    assert [t.tolist() for t in tensors] == [[0], [], [6, 7]]
    Flat(tensors[2:], before=1).write(np.arange(9, dtype=np.float32))
    assert tensors[2].tolist() == [1, 2]
