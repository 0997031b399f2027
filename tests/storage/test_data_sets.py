# SPDX-License-Identifier: Apache-2.0
"""Data sets in a folder, in memory and on S3: every sample once, from any place on; what is not whole is not read."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tools.storage.s3 import Proxy
from trnlab.cli.main import main
from trnlab.datasets import Order, Reader, Shards, index, write
from trnlab.datasets.shards import BEGUN, INDEX
from trnlab.datasets.writing import damaged
from trnlab.errors import RunError, TrnlabError, UsageError
from trnlab.storage import Store, open_store
from trnlab.storage.remote import RemoteStore

ROWS = 1000


def images(first: int, last: int) -> dict[str, NDArray[np.generic]]:
    """Samples of which each is known by its label."""
    labels = np.arange(first, last)
    return {"x": np.repeat(labels, 6).reshape(-1, 2, 3).astype(np.float32), "y": labels}


def written(store: Store, rows: int = ROWS) -> Shards:
    return write(store, (images(i, min(i + 100, rows)) for i in range(0, rows, 100)), shard_bytes=7000)


def labels(reader: Reader, epochs: int) -> list[list[int]]:
    """The labels of each batch, whose images are theirs."""
    found = []
    for batch in reader.until(epochs):
        assert np.array_equal(batch["x"][:, 0, 0].astype(np.int64), batch["y"])
        found.append(batch["y"].tolist())
    return found


def small(shards: Shards, batch: int, **options: object) -> Reader:
    """A reader of many blocks, for shards that are small."""
    return Reader(shards, batch, block=40 * shards.row_bytes, together=3, **options)  # type: ignore[arg-type]


def test_what_is_written_is_read_again(store: Store) -> None:
    made, opened = written(store), Shards.opened(store)
    assert opened == made
    assert opened.rows == ROWS
    assert len(opened.shards) == 4
    assert not store.exists(BEGUN)
    found = opened.read(1, 17, 40)
    assert found["y"].tolist() == list(range(317, 340))
    assert found["x"].shape == (23, 2, 3)
    assert damaged(opened) == []


@pytest.mark.parametrize("prefetch", [0, 4])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_ranks_together_read_every_sample_once(tmp_path: Path, ranks: int, prefetch: int) -> None:
    shards = written(open_store(tmp_path))
    of_ranks = [small(shards, 20, rank=r, ranks=ranks, prefetch=prefetch) for r in range(ranks)]
    found = [labels(reader, 2) for reader in of_ranks]
    each = len(of_ranks[0])
    assert each == ROWS // (20 * ranks)
    for epoch in range(2):
        seen = [label for rank in found for batch in rank[epoch * each : (epoch + 1) * each] for label in batch]
        assert len(seen) == len(set(seen)) == ROWS - of_ranks[0].unused
    assert found[0][:each] != found[0][each:]
    assert of_ranks[0].counts.samples == 2 * each * 20


def test_samples_are_mixed_and_without_a_seed_lie_as_they_are(tmp_path: Path) -> None:
    shards = written(open_store(tmp_path))
    first = [label for batch in labels(small(shards, 10), 1) for label in batch]
    assert sorted(first) == list(range(ROWS))
    assert first == [label for batch in labels(small(shards, 10, prefetch=0), 1) for label in batch]
    assert first != [label for batch in labels(small(shards, 10, seed=1), 1) for label in batch]
    near = sum(abs(a - b) == 1 for a, b in itertools.pairwise(first))
    assert near < 0.1 * ROWS
    assert labels(small(shards, 10, seed=None), 1) == [list(range(i, i + 10)) for i in range(0, ROWS, 10)]


def test_the_order_is_that_of_every_version() -> None:
    """Checkpoints lean on it: this is no order that may change."""
    order = Order((5, 5, 5, 2), lanes=2, together=2, seed=7)
    groups = [[[(p.block, p.first, p.last) for p in g.pieces] for g in order.groups(3, lane)] for lane in (0, 1)]
    mixed = [order.mixed(3, lane, g).tolist() for lane in (0, 1) for g in order.groups(3, lane)]
    assert groups == [[[(3, 0, 2), (0, 0, 5)], [(1, 0, 1)]], [[(1, 1, 5), (2, 0, 5)]]]
    assert mixed == [[4, 6, 5, 0, 2, 3, 1], [0], [0, 1, 5, 8, 7, 6, 3, 2, 4]]
    assert sum(g.count for lane in (0, 1) for g in order.groups(3, lane)) == 17


def test_reading_goes_on_at_the_right_sample_from_any_place(tmp_path: Path) -> None:
    shards = written(open_store(tmp_path))
    whole = labels(small(shards, 30), 3)
    draw = random.Random(0)
    for stop in draw.sample(range(len(whole)), 12):
        reader = small(shards, 30)
        batches = reader.until(3)
        for _ in range(stop):
            next(batches)
        batches.close()
        state = json.loads(json.dumps(reader.state_dict()))
        again = small(shards, 30)
        again.load_state_dict(state)
        assert labels(again, 3) == whole[stop:]


def test_going_on_reads_one_group_and_not_what_was_used(tmp_path: Path) -> None:
    shards = written(open_store(tmp_path))
    reader = small(shards, 30)
    for _, _ in zip(range(25), reader.until(1)):
        pass
    again = small(shards, 30, prefetch=0)
    again.load_state_dict(reader.state_dict())
    next(again.until(1))
    assert again.counts.requests <= 2 * 2 * again.together  # two fields; a batch may reach into the next group


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (1, 4)])
def test_another_number_of_ranks_goes_on_with_the_same_global_batches(
    tmp_path: Path, before: int, after: int
) -> None:
    shards = written(open_store(tmp_path))

    def global_batches(ranks: int, state: dict[str, object] | None, stop: int | None) -> tuple[list[list[int]], dict]:
        readers = [small(shards, 40 // ranks, rank=r, ranks=ranks, lanes=4) for r in range(ranks)]
        for reader in readers:
            if state is not None:
                reader.load_state_dict(state)
        found = []
        running = [reader.until(2) for reader in readers]
        for parts in zip(*running):
            found.append([label for part in parts for label in part["y"].tolist()])
            if len(found) == stop:
                break
        assert len({json.dumps(reader.state_dict()) for reader in readers[:1]}) == 1
        return found, readers[0].state_dict()

    whole, _ = global_batches(before, None, None)
    first, state = global_batches(before, None, 31)
    rest, _ = global_batches(after, state, None)
    assert first + rest == whole
    assert [len(batch) for batch in whole] == [40] * 50


def test_tokens_are_cut_into_samples_that_meet(tmp_path: Path) -> None:
    for i in range(3):
        np.arange(i * 1000, i * 1000 + 1000, dtype=np.uint16).tofile(tmp_path / f"tokens-{i:05d}.bin")
    shards = Shards.opened(open_store(tmp_path), "uint16")
    reader = Reader(shards, 4, sequence=32, block=300)
    found = np.concatenate([batch["tokens"] for batch in reader.until(1)])
    assert found.shape == (4 * len(reader), 33)
    assert (np.diff(found.astype(int), axis=1) == 1).all()
    starts = sorted(found[:, 0].tolist())
    expected = [i * 1000 + 32 * k for i in range(3) for k in range(31)]
    assert set(starts) <= set(expected)
    assert len(starts) == len(set(starts)) == len(expected) - reader.unused
    index(open_store(tmp_path), "uint16")
    again = Reader(Shards.opened(open_store(tmp_path)), 4, sequence=32, block=300)
    assert np.array_equal(np.concatenate([batch["tokens"] for batch in again.until(1)]), found)


def test_files_of_others_are_read_as_they_are(store: Store, tmp_path: Path) -> None:
    import io

    for i in range(3):
        for name, array in images(i * 50, i * 50 + 50).items():
            file = io.BytesIO()
            np.save(file, array)
            store.write(f"train/{name}_{i}.npy", file.getvalue())
    shards = Shards.opened(store)
    assert [field.name for field in shards.fields] == ["x", "y"]
    assert sorted(label for batch in labels(small(shards, 10), 1) for label in batch) == list(range(150))
    made = index(store)
    assert all(file.crc32 for shard in made.shards for file in shard.files.values())
    assert Shards.opened(store) == made


def test_damage_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    """Bits that flip, files that end early, files in each other's place: said, with the file."""
    draw = random.Random(5)
    for trial in range(12):
        store = open_store(tmp_path / str(trial))
        shards = written(store)
        file, other = draw.sample([f for s in shards.shards for f in s.files.values() if f.name[0] == "x"], 2)
        content = bytearray(store.read(file.name))
        kind = trial % 3
        if kind == 0:
            content[draw.randrange(file.offset, len(content))] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del content[draw.randrange(file.offset, len(content)) :]
        else:
            content[:] = store.read(other.name)
        store.write(file.name, bytes(content))
        assert len(damaged(Shards.opened(store))) == 1
        with pytest.raises(RunError, match=file.name) as caught:
            labels(small(Shards.opened(store), 10), 1)
        assert caught.value.code == "TRN572"


def test_a_set_that_was_not_finished_is_none(store: Store) -> None:
    def stopped() -> object:
        yield images(0, 500)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(store, stopped(), shard_bytes=100)  # type: ignore[arg-type]
    assert any(item.name == "x-00000.npy" for item in store.items())
    with pytest.raises(RunError, match="never finished") as caught:
        Shards.opened(store)
    assert caught.value.code == "TRN571"
    written(store)
    assert Shards.opened(store).rows == ROWS


def test_what_is_no_data_set_is_said(tmp_path: Path) -> None:
    import io
    import pickle

    def saved(array: NDArray[np.generic]) -> bytes:
        file = io.BytesIO()
        np.save(file, array, allow_pickle=True)
        return file.getvalue()

    plain = saved(np.ones((4, 2)))
    for name, files in {
        "nothing": {},
        "text": {"a.txt": b"x"},
        "objects": {"x-0.npy": saved(np.array([{}, None], object))},
        "columns": {"x-0.npy": saved(np.asfortranarray(np.ones((4, 2))))},
        "short": {"x-0.npy": plain[:-1]},
        "number": {"x-0.npy": saved(np.array(1.0))},
        "pickle": {"x-0.npy": pickle.dumps(1)},
        "formats": {"bin-0.bin": b"1234"},
        "no rows": {"x-0.npy": saved(np.ones((0, 3)))},
        "shapes": {"x-0.npy": plain, "x-1.npy": saved(np.ones((4, 3)))},
        "rows": {"x-0.npy": plain, "y-0.npy": saved(np.ones(3))},
        "lacks": {"x-0.npy": plain, "y-1.npy": plain},
        "index": {INDEX: b"[]"},
        "deep": {INDEX: b"[" * 100_000},
    }.items():
        store = open_store(tmp_path / name)
        for file, content in files.items():
            store.write(file, content)
        with pytest.raises(RunError) as caught:
            Shards.opened(store)
        assert caught.value.code == "TRN571", name


def test_an_index_that_was_changed_at_random_is_read_or_refused(tmp_path: Path) -> None:
    """And names nothing outside of its folder."""
    store, draw = open_store(tmp_path), random.Random(3)
    content, codes = written(store, 300).to_json(), set()
    for _ in range(2000):
        changed = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(changed))
            changed[at : at + draw.randrange(4)] = bytes(draw.choice(b'"0123456789{}[],:-.eE/x<f') for _ in range(2))
        store.write(INDEX, bytes(changed))
        try:
            labels(small(Shards.opened(store), 10, prefetch=0), 1)
        except TrnlabError as error:
            codes.add(error.code)
        except (AssertionError, KeyError):
            pass  # other numbers of a format as wide, or a field of another name
    assert codes <= {"TRN570", "TRN571", "TRN572", "TRN573"}
    for name in ("/etc/passwd", "../x-00000.npy", "a/../../x"):
        store.write(INDEX, content.replace(b"x-00000.npy", name.encode()))
        with pytest.raises(RunError) as caught:
            Shards.opened(store)
        assert caught.value.code == "TRN571"


def test_requests_that_cannot_be_are_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    shards = written(store)
    for options in (
        {"batch": 0},
        {"batch": 2000},
        {"batch": 3, "lanes": 2},
        {"batch": 4, "ranks": 2, "lanes": 3},
        {"batch": 4, "rank": 1},
        {"batch": 4, "prefetch": -1},
        {"batch": 4, "sequence": 8},
        {"batch": 4, "together": 0},
    ):
        with pytest.raises(UsageError) as caught:
            Reader(shards, **options)  # type: ignore[arg-type]
        assert caught.value.code == "TRN573"
    with pytest.raises(UsageError) as caught:
        written(store)
    assert caught.value.code == "TRN573"
    for parts in ([{"x": np.ones(3), "y": np.ones(2)}], [{"x": np.ones(3)}, {"y": np.ones(3)}], [{"x1": np.ones(3)}]):
        with pytest.raises(UsageError) as caught:
            write(open_store(tmp_path / "other"), parts)
        assert caught.value.code == "TRN573"


def test_the_state_of_another_set_or_order_is_refused(tmp_path: Path) -> None:
    shards = written(open_store(tmp_path / "a"))
    other = written(open_store(tmp_path / "b"), 900)
    state = small(shards, 10).state_dict()
    for reader in (small(other, 10), small(shards, 10, seed=3), small(shards, 10, lanes=2)):
        with pytest.raises(RunError) as caught:
            reader.load_state_dict(state)
        assert caught.value.code == "TRN573"


def test_trouble_of_s3_is_waited_out_and_what_stays_is_said(server: Proxy, bucket: str) -> None:
    written(open_store(f"{bucket}/set"))
    store = open_store(f"{bucket}/set")
    shards = Shards.opened(store)
    refused = iter([503, None, 503, "cut"])
    server.fault = lambda method, path: next(refused, None)
    assert sorted(label for batch in labels(small(shards, 20), 1) for label in batch) == list(range(ROWS))
    assert store.usage.retries == 3
    gone = RemoteStore(f"{bucket}/set", patience_s=0.3)
    server.fault = lambda method, path: 503
    for where in (gone, open_store("s3://no-such-bucket-of-the-test/set")):
        if where is not gone:
            server.fault = lambda method, path: None
        with pytest.raises(RunError) as caught:
            Shards.opened(where)
        assert caught.value.code == "TRN570"


def test_s3_is_asked_once_for_each_block(server: Proxy, bucket: str) -> None:
    written(open_store(f"{bucket}/set"))
    shards = Shards.opened(open_store(f"{bucket}/set"))
    server.log.clear()
    reader = Reader(shards, 50)
    list(reader.until(1))
    assert len(server.log) == reader.counts.requests == 2 * len(reader.blocks)
    assert reader.counts.read_bytes == shards.nbytes


def test_the_commands_show_index_and_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.arange(5000, dtype=np.uint16).tofile(tmp_path / "tokens-0.bin")
    place = str(tmp_path)
    assert main(["data", "verify", place, "--dtype", "uint16"]) == 0
    assert "there are no checksums" in capsys.readouterr().out
    assert main(["data", "index", place, "--dtype", "uint16"]) == 0
    assert main(["data", "show", place]) == 0
    assert "5,000 rows in 1 shards" in capsys.readouterr().out
    content = bytearray((tmp_path / "tokens-0.bin").read_bytes())
    content[77] ^= 4
    (tmp_path / "tokens-0.bin").write_bytes(content)
    assert main(["data", "verify", place]) == 1
    assert "'tokens-0.bin' of a data set is damaged: rows 0 to 5,000" in capsys.readouterr().out
    assert main(["data", "show", str(tmp_path / "none")]) == 2
    assert "TRN571" in capsys.readouterr().err
