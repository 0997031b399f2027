# SPDX-License-Identifier: Apache-2.0
"""Folders that others write to: a cache, live records and checkpoints full of what is none of ours.

Links to somebody's files, loops, pipes, sockets, folders, files of terabytes, names of our own on other content. A
run goes on, a monitor shows, commands list; nothing of somebody's is read, changed or removed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tools.attack import Outcome
from tools.attack.poison import RESULT, graph
from trnlab import chips
from trnlab.cli.main import main
from trnlab.runtime import device, status_file
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.cache.fingerprint import fingerprint
from trnlab.runtime.session import Session
from trnlab.storage import open_store
from trnlab.storage.checkpoints import Checkpoints
from trnlab.storage.content import ContentStore

VALUES = (None, -1, 1 << 70, "x\x1b[2J\n", "<b>", [], {}, 1e308, True, "\u202e", [[]], {"a": None})
SECONDS = 120  # for one input: who waits longer hangs
Make = Callable[[Path, Path], object]


def _sparse(path: Path, victim: Path) -> None:
    with path.open("wb") as file:
        file.truncate(200 << 30)


def _socket(path: Path, victim: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, contextlib.suppress(OSError):  # the path may be too long for one
        made.bind(str(path))


MAKE: dict[str, Make] = {
    "a link": lambda path, victim: path.symlink_to(victim),
    "a link to nowhere": lambda path, victim: path.symlink_to(path.with_name("nowhere")),
    "a loop": lambda path, victim: path.symlink_to(path),
    "a link to a folder": lambda path, victim: path.symlink_to(victim.parent, target_is_directory=True),
    "a hard link": lambda path, victim: os.link(victim, path),
    "a FIFO": lambda path, victim: os.mkfifo(path),
    "a folder": lambda path, victim: path.mkdir(),
    "a sparse file": _sparse,
    "a socket": _socket,
    "nothing in it": lambda path, victim: path.write_bytes(b""),
    "other content": lambda path, victim: path.write_bytes(b"\x00\xff{[" * 99),
}


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Raises TimeoutError where it hangs."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _said(*command: str) -> str:
    """What a command says; a traceback ends the attack."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = main([*command])
    return f"{status} {out.getvalue()}"


def caches(inputs: int, seed: int) -> Outcome:
    """A run with such a cache computes what it does without one, and commands for it leave all else alone."""
    outcome, now = Outcome(), graph()
    key = fingerprint(now, *_chip_and_options()).key
    names = [
        f"v1/{key}.trnx",
        f"v1/{key}.hits",
        f"v1/leases/{key}/1",
        f"v1/leases/{key}",
        "v1/leases",
        "v1",
        "v1/notes",
        f"v1/.{key}.trnx.7-8.tmp",
    ]
    for number in range(inputs):
        pick = random.Random(f"{seed} {number}")
        with tempfile.TemporaryDirectory() as folder:
            victim, place = Path(folder, "theirs", "victim"), Path(folder, "cache")
            victim.parent.mkdir()
            victim.write_bytes(b"mine")
            name, kind = pick.choice(names), pick.choice([*MAKE])
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            MAKE[kind](path, victim)
            what = f"{name.replace(key, 'KEY')} is {kind}"
            try:
                with _in_time():
                    _use(place, victim)
            except Exception as error:
                outcome.failures.append(f"{what}: {type(error).__name__} {str(error)[:200]}")
            outcome.counts["caches"] += 1
    return outcome


def _chip_and_options() -> tuple[chips.Chip, dict[str, object]]:
    session = Session(chips.target("trn1.2xlarge"), "fp32")
    return session.chip, device.options_of(graph(), session)


def _use(place: Path, victim: Path) -> None:
    """Run with the cache, twice, and use each command."""
    for _ in range(2):
        session = Session(chips.target("trn1.2xlarge"), "fp32", cache=Cache(place, lambda line: None))
        found = device.Loaded(device.compile_graph(graph(), session), session)
        (y,) = found.run([np.ones((64, 32), np.float32), np.full((32, 48), 2, np.float32)])
        assert (y == RESULT).all(), "the run computes something else"
    for command in ("ls", "verify", "prune", "clear"):
        said = _said("cache", command, "--cache", str(place), *(["--size", "0B"] if command == "prune" else []))
        assert "Traceback" not in said, said
    assert victim.read_bytes() == b"mine", "somebody's file was changed"
    assert [each.name for each in victim.parent.iterdir()] == ["victim"], "something is beside somebody's file"


def records(inputs: int, seed: int) -> Outcome:
    """Live records of anything: a run starts, a monitor shows, and neither changes a file of somebody."""
    outcome, before = Outcome(), os.environ.get(status_file.PLACE)
    sound = _record()
    for number in range(inputs):
        pick = random.Random(f"{seed} {number}")
        with tempfile.TemporaryDirectory() as folder:
            victim, place = Path(folder, "theirs", "victim"), Path(folder, "live")
            victim.parent.mkdir()
            victim.write_bytes(b"mine")
            place.mkdir(mode=0o700)
            path = place / pick.choice(["1.json", f"{os.getpid()}.json", "watched", "99999999.json", "x.json"])
            kind = pick.choice([*MAKE, "a record", "a record", "a record"])
            if kind == "a record":
                _spoil(sound, path, pick)
            else:
                MAKE[kind](path, victim)
            os.environ[status_file.PLACE] = str(place)
            try:
                with _in_time():
                    status_file.StatusFile(lambda timed: {}).renew(now=True)
                    for form in ("--top", "--json", "--prometheus"):
                        said = _said("monitor", form, *([] if form == "--prometheus" else ["--samples", "1"]))
                        shown = said.replace("\n", "").replace("\t", "")
                        assert "Traceback" not in said, said
                        assert shown.isprintable(), "a control character is shown"
                assert victim.read_bytes() == b"mine", "somebody's file was changed"
            except Exception as error:
                outcome.failures.append(f"{path.name} is {kind}: {type(error).__name__} {str(error)[:200]}")
            outcome.counts["folders"] += 1
    os.environ.pop(status_file.PLACE)
    if before is not None:
        os.environ[status_file.PLACE] = before
    return outcome


def _record() -> dict[str, object]:
    return {
        "schema": status_file.SCHEMA,
        "version": status_file.VERSION,
        "pid": os.getpid(),
        "birth": status_file.birth(os.getpid()),
        "host": "h",
        "updated": 1.0,
        "started": 1.0,
        "status": "running",
        "errors": {"generic": 1},
        "outcomes": {},
        "ecc": {},
        "tag": "t",
        "target": "trn1.2xlarge",
        "instances": 1,
        "rank": 0,
        "ranks": 1,
        "place": {"instance": 0, "chip": 0, "core": 0},
        "logical": 1,
        "pairs": False,
        "network_s": 0.0,
        "memory": {"tensors": 1},
        "script": "x.py",
        "loss": [1.0],
        "steps": 3,
        "executions": [{"name": "n", "key": "k", "calls": 1, "latency_s": 0.1, "flops": 1}],
    }


def _spoil(sound: dict[str, object], path: Path, pick: random.Random) -> None:
    """One to three fields of a record that are others."""
    told = json.loads(json.dumps(sound))
    for _ in range(pick.randint(1, 3)):
        value = pick.choice(
            [None, -1, 1 << 70, "x\x1b[2J\n", "<b>", [], {}, 1e308, True, "\u202e", [[]], {"a": None}]
        )
        told[pick.choice([*told])] = value
    path.write_text(json.dumps(told))


def results(inputs: int, seed: int) -> Outcome:
    """Kept results (reports of checks, costs, recordings): what is none of ours is as if it were not there."""
    outcome = Outcome()
    for number in range(inputs):
        pick = random.Random(f"{seed} {number}")
        with tempfile.TemporaryDirectory() as folder:
            victim = Path(folder, "victim")
            victim.write_bytes(b"mine")
            store = ContentStore(Path(folder, "kept"))
            file = store.file(["made", "from"])
            assert file is not None
            file.parent.mkdir()
            kind = pick.choice([*MAKE])
            MAKE[kind](file, victim)
            try:
                with _in_time():
                    assert store.record(file) is None, "it is taken for a record"
                    store.write_record(file, {"a": 1})
                    assert store.record(file) in (None, {"a": 1})
                assert victim.read_bytes() == b"mine", "somebody's file was changed"
            except Exception as error:
                outcome.failures.append(f"{kind}: {type(error).__name__} {str(error)[:200]}")
            outcome.counts["folders"] += 1
    return outcome


def checkpoints(inputs: int, seed: int) -> Outcome:
    """A file of the newest checkpoint is something else: the one before is taken, and nothing is changed for it."""
    outcome = Outcome()
    for number in range(inputs):
        pick = random.Random(f"{seed} {number}")
        with tempfile.TemporaryDirectory() as folder:
            victim, place = Path(folder, "theirs", "victim"), Path(folder, "kept")
            victim.parent.mkdir()
            victim.write_bytes(b"mine")
            kept = Checkpoints(open_store(place))
            for step in (1, 2):
                kept.save(step, {"state.pt": bytes([step]) * 99, "more/of.it": b"x"})
            files = [p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file()]
            name = pick.choice([each for each in files if each.startswith("step_00000002/") or each == "newest"])
            kind = pick.choice([*MAKE])
            (place / name).unlink()
            MAKE[kind](place / name, victim)
            try:
                with _in_time():
                    _resume(place, name)
                    said = _said("checkpoint", "verify", str(place))
                    assert "Traceback" not in said, said
                assert victim.read_bytes() == b"mine", "somebody's file was changed"
            except Exception as error:
                outcome.failures.append(f"{name} is {kind}: {type(error).__name__} {str(error)[:200]}")
            outcome.counts["checkpoints"] += 1
    return outcome


def _resume(place: Path, name: str) -> None:
    """What is taken, and that a third is written beside it, after which the first goes."""
    found = Checkpoints(open_store(place)).load_newest()
    assert found is not None, "nothing is taken"
    step, files = found
    assert files["state.pt"] == bytes([step]) * 99, "a checkpoint is another"
    assert step == 2 or name != "newest", "the newest is passed over for its name alone"
    kept = Checkpoints(open_store(place), keep=2)
    kept.save(3, {"state.pt": b"\3" * 99})
    assert kept.load(3) == {"state.pt": b"\3" * 99}
