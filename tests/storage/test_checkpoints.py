# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in a store: the newest whole one is found whatever happened to the others."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from trnlab.cli.main import main
from trnlab.errors import RunError
from trnlab.storage import Store, open_store
from trnlab.storage.checkpoints import Checkpoints


def files(step: int, rank: int = 0) -> dict[str, bytes]:
    return {"state.pt": f"state {step} of {rank}".encode() * 50, "empty": b""}


def filled(store: Store, *steps: int, keep: int = 3) -> Checkpoints:
    kept = Checkpoints(store, keep=keep)
    for step in steps:
        kept.save(step, files(step))
    return kept


def test_the_newest_is_found_and_so_many_stay(store: Store) -> None:
    kept = filled(store, 5, 10, 15, 20, keep=2)
    assert [(c.step, c.done) for c in kept.all()] == [(20, True), (15, True)]
    assert kept.load_newest() == (20, files(20))
    assert kept.load(15) == files(15)
    assert Checkpoints(open_store(store.url)).load_newest() == (20, files(20))


def test_where_nothing_is_training_begins(store: Store) -> None:
    assert Checkpoints(store).load_newest() is None
    store.write("step_00000005/checkpoint", b"")
    store.write("step_00000005/rank_00000/state.pt", b"half")
    assert Checkpoints(store).load_newest() is None


DAMAGED = ["flip", "cut", "gone", "record", "record gone", "swapped"]
EACH = [(url, damage) for url in ("folder", "memory") for damage in DAMAGED]
EACH += [("s3", "flip"), ("s3", "record gone")]
MORE = [pytest.param("s3", damage, marks=pytest.mark.slow) for damage in DAMAGED if ("s3", damage) not in EACH]


@pytest.mark.parametrize(("url", "damage"), [*EACH, *MORE], indirect=["url"])
def test_damage_is_said_and_the_one_before_is_taken(store: Store, damage: str) -> None:
    kept = filled(store, 5, 10)
    name, record = "step_00000010/rank_00000/state.pt", "step_00000010/rank_00000.json"
    content = bytearray(store.read(name))
    content[7] ^= 4
    if damage.endswith("gone"):
        store.delete(record if damage.startswith("record") else name)
    elif damage == "record":
        store.write(record, store.read(record)[:-9])
    else:
        other = store.read("step_00000005/rank_00000/state.pt")
        store.write(name, {"flip": bytes(content), "cut": bytes(content[:-1]), "swapped": other}[damage])
    assert kept.load_newest() == (5, files(5))
    assert len(kept.messages) == 1
    assert "step 10 is not whole" in kept.messages[0]


def test_when_none_is_whole_nothing_begins_anew(store: Store) -> None:
    kept = filled(store, 5)
    store.write("step_00000005/rank_00000/state.pt", b"")
    with pytest.raises(RunError) as caught:
        kept.load_newest()
    assert caught.value.code == "TRN532"


def test_what_was_not_finished_is_not_read_and_goes_with_the_next(store: Store) -> None:
    kept = filled(store, 5)
    store.write("step_00000010/checkpoint", b"")
    store.write("step_00000010/rank_00000/state.pt", b"half")
    assert kept.load_newest() == (5, files(5))
    kept.save(15, files(15))
    assert [c.step for c in kept.all()] == [15, 5]


def test_a_listing_that_lags_does_not_hide_the_newest(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = filled(store, 5)
    stale = store.items()
    kept.save(10, files(10))
    monkeypatch.setattr(store, "items", lambda prefix="": [i for i in stale if i.name.startswith(prefix)])
    assert kept.load_newest() == (10, files(10))


def test_a_checkpoint_of_several_ranks_is_done_when_all_have_written(store: Store) -> None:
    def work(rank: int) -> None:
        Checkpoints(store, rank, 4).save(5, files(5, rank))

    threads = [threading.Thread(target=work, args=[rank]) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(4):
        assert Checkpoints(store, rank, 4).load_newest() == (5, files(5, rank))
    with pytest.raises(RunError) as caught:
        Checkpoints(store, 0, 2).load_newest()
    assert caught.value.code == "TRN530"


def test_a_rank_that_never_writes_leaves_none_that_is_done(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnlab.storage.checkpoints.PATIENCE_S", 0.1)
    with pytest.raises(RunError) as caught:
        Checkpoints(store, 0, 2).save(5, files(5))
    assert caught.value.code == "TRN531"
    assert "rank 1 has not written" in caught.value.what
    assert Checkpoints(store, 0, 2).load_newest() is None


def test_the_command_line_lists_and_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(tmp_path)
    filled(store, 5, 10)
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0
    assert "2 checkpoints" in capsys.readouterr().out
    assert main(["checkpoint", "verify", str(tmp_path)]) == 0
    store.write("step_00000010/rank_00000/state.pt", b"")
    assert main(["checkpoint", "verify", str(tmp_path)]) == 1
    assert "1 of 2 are whole" in capsys.readouterr().out
    assert main(["checkpoint", "diff", str(tmp_path), "--steps", "7,5"]) == 2
    assert "TRN534" in capsys.readouterr().err
    for action in ("ls", "verify"):
        assert main(["checkpoint", action, str(tmp_path / "steps")]) == 2
        assert "TRN576: there are no checkpoints in this place" in capsys.readouterr().err
