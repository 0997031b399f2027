# SPDX-License-Identifier: Apache-2.0
"""Checkpoints are folders of torch.distributed.checkpoint, and what PyTorch writes of the device it reads again."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from trnlab import checkpoint
from trnlab.errors import RunError
from trnlab.frontends.torch.saving import state_files
from trnlab.frontends.torch.saving import training_state as states
from trnlab.frontends.torch.saving.portable import dcp as portable
from trnlab.storage import open_store
from trnlab.storage.checkpoints import Checkpoints, name_of

pytestmark = pytest.mark.torch


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.words.weight
        self.norm = nn.LayerNorm(3)


def trained(seed: int = 0) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Tied().to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for p in model.parameters():
        p.grad = torch.randn(p.shape).to("neuron")
    optimizer.step()
    return model, optimizer


def alone(function: Any, *args: Any, **kwargs: Any) -> Any:
    """DCP warns of a process without a group."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def same(a: Any, b: Any) -> bool:
    return states.differences(states.taken(a), states.taken(b)) == []


def test_pytorch_reads_a_checkpoint_as_a_dcp_folder(tmp_path: Path) -> None:
    model, optimizer = trained()
    run = checkpoint.resume(str(tmp_path), every=1, model=model, optimizer=optimizer)
    run.stepped()
    run.wait()
    other, fresh = trained(1)
    model_state, optimizer_state = get_state_dict(other, fresh)
    state = {"model": model_state, "optimizer": optimizer_state}
    alone(dcp.load, state, checkpoint_id=tmp_path / name_of(1))
    set_state_dict(other, fresh, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert same(other, model)
    assert same(fresh, optimizer)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_dcp_saves_and_loads_what_is_on_the_device(tmp_path: Path, asynchronous: bool) -> None:
    model, optimizer = trained()
    names = ("model", "optimizer")
    state = dict(zip(names, get_state_dict(model, optimizer)))
    if asynchronous:
        alone(lambda: dcp.async_save(state, checkpoint_id=tmp_path).result())
    else:
        alone(dcp.save, state, checkpoint_id=tmp_path)
    other, fresh = trained(1)
    state = dict(zip(names, get_state_dict(other, fresh)))
    alone(dcp.load, state, checkpoint_id=tmp_path)
    set_state_dict(other, fresh, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert same(other, model)
    assert same(fresh, optimizer)
    table = portable.of_folder(open_store(tmp_path))
    assert torch.equal(table.read("model.norm.weight"), model.norm.weight.detach().cpu())
    assert table.values["optimizer.param_groups.0.lr"][1] == 1e-2


def test_torch_save_keeps_what_is_on_the_device(tmp_path: Path) -> None:
    model, optimizer = trained()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "x.pt")
    state = torch.load(tmp_path / "x.pt", weights_only=True)
    assert state["model"]["norm.weight"].device.type == "neuron"
    other, fresh = trained(1)
    other.load_state_dict(state["model"])
    fresh.load_state_dict(state["optimizer"])
    assert same(other, model)
    assert same(fresh, optimizer)
    on_host = torch.load(tmp_path / "x.pt", weights_only=True, map_location="cpu")
    assert on_host["model"]["norm.weight"].device.type == "cpu"


def of_ranks(place: Path, ranks: int) -> torch.Tensor:
    """A checkpoint of a matrix of 5 rows that is spread over so many ranks, the last ones with less or nothing."""
    whole = torch.arange(15.0).reshape(5, 3)
    store = open_store(place)
    for rank in reversed(range(ranks)):
        each = -(-5 // ranks)
        part = states.TensorShard(whole[rank * each : (rank + 1) * each].clone(), (5, 3), (min(rank * each, 5), 0))
        module = states.ModuleState(w=part, b=torch.tensor([1.5]))
        module.again = {}
        kept = Checkpoints(store, rank, ranks, index=state_files.index)
        kept.save(4, *state_files.packed({"model": module, "step": 4}))
    return whole


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_parts_of_ranks_are_one_tensor(tmp_path: Path, ranks: int) -> None:
    whole = of_ranks(tmp_path, ranks)
    state = {"model": {"w": torch.zeros(5, 3), "b": torch.zeros(1)}}
    alone(dcp.load, state, checkpoint_id=tmp_path / name_of(4))
    assert torch.equal(state["model"]["w"], whole)
    kept = Checkpoints(open_store(tmp_path), 1, ranks)
    table = portable.of_checkpoint(kept, 4)
    assert torch.equal(table.read("model.w"), whole)
    assert torch.equal(table.read("model.w", ((1, 1), (3, 2))), whole[1:4, 1:])
    mine = state_files.unpacked(kept.load(4))
    assert mine["step"] == 4
    assert mine["model"]["w"].shape == (5, 3)
    kept.remove(4)
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "newest"] == []


def test_a_slice_that_is_missing_is_said(tmp_path: Path) -> None:
    of_ranks(tmp_path, 2)
    table = portable.of_checkpoint(Checkpoints(open_store(tmp_path), 0, 2), 4)
    del table.entries["model.w"].chunks[1]
    with pytest.raises(RunError) as caught:
        table.read("model.w")
    assert caught.value.code == "TRN543"


def test_an_index_that_would_run_code_is_refused(tmp_path: Path) -> None:
    import os
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    for content in (pickle.dumps(Evil()), b"", b"\x80\x04]\x94.", os.urandom(64)):
        (tmp_path / ".metadata").write_bytes(content)
        with pytest.raises(RunError) as caught:
            portable.of_folder(open_store(tmp_path))
        assert caught.value.code == "TRN532"
    assert not (tmp_path / "ran").exists()


class Chorus:
    """Ranks that agree with what `others` say."""

    def __init__(self, others: list[bool]) -> None:
        self.others = others

    def first(self, value: str) -> str:
        return value

    def all(self, ok: bool) -> bool:
        return ok and self.others.pop(0)


def test_ranks_agree_and_read_only_what_is_theirs(tmp_path: Path) -> None:
    of_ranks(tmp_path, 4)
    store = open_store(tmp_path)
    kept = Checkpoints(store, 0, 4, agreement=Chorus([True]))
    before = store.usage.read_bytes
    found = kept.load_newest()
    assert found is not None
    size = sum(item.size for item in store.items(f"{name_of(4)}/rank_00000/"))
    assert store.usage.read_bytes - before < 2 * size + 4000
    with pytest.raises(RunError) as caught:
        Checkpoints(store, 0, 4, agreement=Chorus([False])).load_newest()
    assert caught.value.code == "TRN532"


def test_generators_that_nobody_draws_from_need_no_seed() -> None:
    import random

    def drawn(seed: int, numbers: int) -> int:
        random.seed(seed)
        torch.manual_seed(0)
        draws = states.Draws()
        torch.rand(3)
        for _ in range(numbers):
            random.random()
        return draws.fingerprint()

    assert drawn(1, 0) == drawn(2, 0)
    assert drawn(1, 1) != drawn(2, 1)
    assert drawn(1, 1) == drawn(1, 1)
