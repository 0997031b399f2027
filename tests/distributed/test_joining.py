# SPDX-License-Identifier: Apache-2.0
"""Ranks that never come are named, and nobody waits for them longer than the timeout."""

import threading
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from trnlab.errors import CollectiveError
from trnlab.frontends.torch.distributed.watch import PeerWatch

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("come", "said"),
    [((0,), "ranks 1, 2 never joined"), ((0, 2), "rank 1 never joined"), ((1, 2), "rank 0 never joined")],
)
def test_who_never_joins_is_named(come, said):
    store = dist.HashStore()
    for rank in come:
        store.set(f"note/{rank}", "{}")
    with pytest.raises(CollectiveError, match=f"TRN281: {said}"):
        PeerWatch(SimpleNamespace(rank=come[0], ranks=(0, 1, 2)), store, 0.05).all_there()


def test_all_who_come_go_on():
    store = dist.HashStore()
    for rank in range(3):
        store.set(f"note/{rank}", "{}")
    PeerWatch(SimpleNamespace(rank=0, ranks=(0, 1, 2)), store, 0.05).all_there()


def test_who_leaves_waits_for_those_that_are_still_connecting():
    store = dist.HashStore()
    first, second = (PeerWatch(SimpleNamespace(rank=rank, ranks=(0, 1)), store, 5.0) for rank in (0, 1))
    first.connected()
    later = threading.Timer(0.3, second.connected)
    later.start()
    first.all_connected(60.0)
    assert store.check(["connected/1"])
    later.join()


def test_a_store_for_ranks_of_the_device_waits_for_nobody(monkeypatch):
    """PyTorch's counts those who came, and does not know who did not."""
    monkeypatch.setenv("TRNLAB_TARGET", "trn1.32xlarge")
    rendezvous = dist.rendezvous("tcp://127.0.0.1:0", rank=0, world_size=2)
    store, rank, size = next(rendezvous)
    assert (rank, size) == (0, 2)
    store.set("here", "1")
