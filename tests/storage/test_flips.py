# SPDX-License-Identifier: Apache-2.0
"""No bit of a checkpoint changes unnoticed, and nothing makes another model of a damaged one."""

from __future__ import annotations

import errno
import functools
import json
import random
import uuid
from collections import Counter
from pathlib import Path

import pytest

from tools.storage.flips import READERS, STEP, Bench, damaged, flips
from trnlab import checkpoint
from trnlab.cli import commands
from trnlab.cli import main as cli
from trnlab.errors import RunError
from trnlab.storage import open_store
from trnlab.storage.checkpoints import Checkpoints, name_of
from trnlab.storage.finished_checkpoint import OLDER
from trnlab.storage.seals import sealed, unsealed

pytestmark = pytest.mark.torch
OF_STEP = name_of(STEP)


@pytest.fixture(autouse=True)
def one_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "parser", functools.cache(commands.parser))


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_flipped_bits_and_short_files_are_noticed(tmp_path: Path, kind: str) -> None:
    place = str(tmp_path / "kept") if kind == "folder" else f"memory://{uuid.uuid4().hex}"
    assert flips(240, 5, place, lambda number: READERS if number % 8 == 0 else ("verify",)) == {}


def test_every_bit_of_done_counts() -> None:
    record = {"step": 3, "ranks": 2, "files": {"rank_00000.json": {"bytes": 2, "sha256": "ab"}}}
    content = sealed(record)
    assert unsealed(content, ["step", "ranks", "files"]) == (record, True)
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r".+"):
            unsealed(bytes(changed), ["step", "ranks", "files"])
    for size in range(len(content)):
        with pytest.raises(ValueError, match=r".+"):
            unsealed(content[:size], ["step", "ranks", "files"])


def test_what_older_releases_wrote_is_read_and_said_not_to_be_covered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(str(tmp_path / "kept"), tmp_path)
    done = json.loads(bench.files[f"{OF_STEP}/done"])
    files = {".metadata": done["files"][".metadata"]}
    older = json.dumps({"step": STEP, "ranks": 2, "files": files}).encode()
    bench.store.write(f"{OF_STEP}/done", older)
    assert cli.main(["checkpoint", "verify", bench.place]) == 0
    assert OLDER in capsys.readouterr().out
    for reader in READERS:
        status, made = bench.read(reader)
        assert (status, made) == (0, bench.sound[reader][1]), reader
    kept = Checkpoints(bench.store)
    assert kept.load_newest(other_ranks=True) is not None
    assert OLDER in kept.messages[0]


def test_an_older_record_that_is_damaged_is_an_error_with_a_code(tmp_path: Path) -> None:
    """Damage to it may stay unnoticed, and is no traceback."""
    bench = Bench(str(tmp_path / "kept"), tmp_path)
    bench.store.write(f"{OF_STEP}/done", json.dumps({"step": STEP, "ranks": 2}).encode())
    name = f"{OF_STEP}/rank_00000.json"
    for number in range(300):
        bench.store.write(name, damaged(bench.files[name], random.Random(number)))
        status, _ = bench.read("to-hf")
        assert status in (0, 1, 2), number


def test_the_files_of_ranks_that_are_no_more_are_checked(tmp_path: Path) -> None:
    """What fewer ranks put together is of all that wrote it."""
    bench = Bench(str(tmp_path / "kept"), tmp_path)
    name = f"{OF_STEP}/rank_00001/tensors.distcp"
    bench.store.write(name, damaged(bench.files[name], random.Random(1)))
    with pytest.raises(RunError) as caught:
        Checkpoints(bench.store).load_newest(other_ranks=True)
    assert caught.value.code == "TRN532"
    with pytest.raises(RunError) as caught:
        checkpoint.load(bench.place)
    assert caught.value.code == "TRN532"


def test_folders_of_pruned_checkpoints_go(tmp_path: Path) -> None:
    kept = Checkpoints(open_store(tmp_path), keep=2)
    for step in range(1, 8):
        if step == 3:  # one that was killed
            (tmp_path / "step_00000003/rank_00000").mkdir(parents=True)
            (tmp_path / "step_00000003/checkpoint").write_bytes(b"")
            (tmp_path / "step_00000003/rank_00000/.state.pt.17-4.tmp").write_bytes(b"half")
            continue
        kept.save(step, {"state.pt": b"state", "more/of.it": b"x"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["newest", "step_00000006", "step_00000007"]


def test_what_somebody_put_or_linked_beside_stays(tmp_path: Path) -> None:
    store = open_store(tmp_path / "kept")
    kept = Checkpoints(store, keep=1)
    kept.save(1, {"state.pt": b"state"})
    kept.save(1, {"state.pt": b"state"})
    (tmp_path / "kept/step_00000001").rename(tmp_path / "archive")
    (tmp_path / "kept/step_00000001").symlink_to(tmp_path / "archive")
    before = sorted(tmp_path.joinpath("archive").rglob("*"))
    kept.save(2, {"state.pt": b"state"})
    (tmp_path / "kept/step_00000002/notes.txt").write_text("mine")
    kept.save(3, {"state.pt": b"state"})
    assert sorted(tmp_path.joinpath("archive").rglob("*")) == before
    assert [p.name for p in (tmp_path / "kept/step_00000002").iterdir()] == ["notes.txt"]


def test_what_does_not_fit_on_the_disk_is_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    kept = Checkpoints(store)
    kept.save(1, {"state.pt": b"state"})
    write = store.write

    def full(name: str, *parts: bytes | memoryview) -> None:
        if name.endswith(".json"):
            raise OSError(28, "No space left on device")
        write(name, *parts)

    monkeypatch.setattr(store, "write", full)
    with pytest.raises(RunError, match="the disk is full"):
        kept.save(2, {"state.pt": b"state"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["newest", "step_00000001"]


def test_a_store_that_refuses_most_holds_up_a_checkpoint_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of its objects anew."""
    from trnlab.storage import remote

    clock = [0.0]
    monkeypatch.setattr(remote.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    store = remote.RemoteStore(f"memory://{uuid.uuid4().hex}")
    once, tries = store._once, Counter[str]()

    def refused(name: str, request: object) -> object:
        tries[name] += 1
        if tries[name] < 9:  # half a minute for each object
            raise OSError(errno.EBUSY, "SlowDown")
        return once(name, request)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_once", refused)
    with pytest.raises(RunError, match="does not answer"):
        Checkpoints(store).save(1, {f"{i}.pt": b"x" for i in range(20)})
    assert clock[0] < 120


def test_what_an_earlier_attempt_left_is_not_taken_for_this_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 waits for a record of this attempt, and does not give out a digest of what is about to be replaced."""
    monkeypatch.setattr("trnlab.storage.checkpoints.PATIENCE_S", 0.2)
    store = open_store(tmp_path)
    Checkpoints(store, 1, 2, attempt="one").save(1, {"state.pt": b"old"})
    with pytest.raises(RunError, match="rank 1 has not written"):
        Checkpoints(store, 0, 2, attempt="two").save(1, {"state.pt": b"new"})
    Checkpoints(store, 1, 2, attempt="two").save(1, {"state.pt": b"new"})
    Checkpoints(store, 0, 2, attempt="two").save(1, {"state.pt": b"new"})
    assert Checkpoints(store, 0, 2).problems(1) == []


def test_nothing_that_was_finished_is_nothing_to_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_store(tmp_path).write("step_00000005/checkpoint", b"")
    assert cli.main(["checkpoint", "verify", str(tmp_path)]) == 2
    assert "TRN534: no checkpoint was finished" in capsys.readouterr().err


def test_a_model_that_was_not_written_whole_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(str(tmp_path / "kept"), tmp_path)
    out = tmp_path / "model"
    command = ["checkpoint", "to-hf", bench.place, str(out), "--shard-size", "8"]
    assert cli.main(command) == 0
    assert len(sorted(out.iterdir())) > 2
    from trnlab.frontends.torch.saving.portable.tables import CheckpointTable

    read = CheckpointTable.read

    def broken(self: CheckpointTable, name: str, *args: object) -> object:
        if name == "model.v":
            raise OSError(5, "Input/output error")
        return read(self, name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckpointTable, "read", broken)
    assert cli.main(command) == 2
    assert sorted(out.iterdir()) == []
