# SPDX-License-Identifier: Apache-2.0
"""Commands that only follow a script change nothing, however it tries, and say what it would have done."""

from __future__ import annotations

import http.server
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from trnlab.cli.main import main
from trnlab.view.effects import HOOKS, NAMESPACES
from trnlab.view.followed import follow
from trnlab.view.request import ViewRequest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).with_name("thirty_ways.py")
FILES = """
    open append path low fileio relative remove unlink posix rename replace move copy linked truncate chmod utime
    by_handle numpy.npy tofile memmap mmap pickle json table.csv gzip archive.zip tar.tar log.txt safetensors large
    torch legacy jit native_open native_unlink thread own_fork by_fork by_spawn by_worker on_signal dying atexit
    after late_thread rmtree/a rmtree/b/c folder/d dcp/e later/f
"""
TARGET = ("--target", "trn1.2xlarge")
COMMANDS = {
    "check": ("check", *TARGET, "--page", "page.html"),
    "estimate": ("estimate", *TARGET, "--json"),
    "doctor": ("doctor", *TARGET),
    "dry": ("compile", *TARGET, "--dry-run", "--json"),
    "compile": ("compile", *TARGET),
}
# Of the files above, what it would have left with another content, in either protection.
WRITTEN = """
    open append path low relative replace copy numpy.npy tofile memmap mmap pickle json table.csv gzip archive.zip
    tar.tar log.txt safetensors large torch legacy jit thread own_fork by_fork by_spawn by_worker on_signal dying
    atexit after late_thread truncate dcp/.metadata later/.metadata
"""


@dataclass
class World:
    """What is around a script: files, listeners and a process."""

    folder: Path
    arguments: list[str]
    heard: list[object]
    process: subprocess.Popen[bytes]

    def state(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for path in (self.folder, *sorted(self.folder.rglob("*"))):
            now = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
            link = os.readlink(path) if path.is_symlink() else None
            found[str(path)] = (now.st_mode, now.st_mtime_ns, now.st_nlink, now.st_uid, now.st_size, content, link)
        return found


@pytest.fixture(scope="module")
def namespaces() -> None:
    """Skips where there are none."""
    request = ViewRequest("os:getcwd", ())
    before = os.environ.get("TRNLAB_VIEW")
    try:
        if follow(request, lambda *_: None)[1].protection != NAMESPACES and before is None:
            pytest.skip("no overlay in a user's namespace here")
    finally:
        assert os.environ.get("TRNLAB_VIEW") == before


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("victims")
    for name in FILES.split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"good " + name.encode())
    (folder / "rmdir").mkdir()
    for name in ("sql.db", "attached.db"):
        with sqlite3.connect(folder / name) as connection:
            connection.execute("create table t(x)")
            connection.execute("insert into t values(1)")
        connection.close()
    os.symlink("open", folder / "a_link")
    os.link(folder / "linked", folder / "linked_too")
    heard: list[object] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append("http")
            self.send_response(200)
            self.end_headers()

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    tcp, udp, unix = socket.socket(), socket.socket(type=socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX)
    for each, address in ((tcp, ("127.0.0.1", 0)), (udp, ("127.0.0.1", 0)), (unix, str(folder / "socket"))):
        each.bind(address)
        each.settimeout(0)
    tcp.listen()
    unix.listen()
    process = subprocess.Popen(["sleep", "86400"])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ports = [server.server_port, tcp.getsockname()[1], udp.getsockname()[1], process.pid]

    def listen() -> list[object]:
        for name, ask in (("tcp", tcp.accept), ("udp", lambda: udp.recv(9)), ("unix", unix.accept)):
            try:
                ask()
            except BlockingIOError:
                continue
            heard.append(name)
        return heard

    made = World(folder, [str(folder), *map(str, ports)], heard, process)
    made.listen = listen  # type: ignore[attr-defined]
    yield made
    server.shutdown()
    for each in (server.socket, tcp, udp, unix):
        each.close()
    process.kill()
    process.wait()


@pytest.fixture
def call(world, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(protection: str, *words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("TRNLAB_VIEW", protection)
        monkeypatch.setenv("TRNLAB_CACHE", str(tmp_path / "cache"))
        before = world.state()
        status = main(words)
        out, err = capsys.readouterr()
        assert world.state() == before, f"changed by {words[0]}"
        assert world.listen() == []
        assert world.process.poll() is None
        return status, out, err

    return run


@pytest.fixture
def protection(request):
    if request.param == NAMESPACES:
        request.getfixturevalue("namespaces")
    return request.param


both = pytest.mark.parametrize("protection", [NAMESPACES, HOOKS], indirect=True)


def says(text: str, world: World, protection: str) -> None:
    """That a list of effects names what the script does."""
    for name in WRITTEN.split():
        assert str(world.folder / name) in text, name
    for name in ("remove", "unlink", "sql.db", "rename", "folder", "rmtree", "chmod", "utime", "made", "link"):
        assert re.search(rf"{re.escape(str(world.folder / name))}\b", text), name
    for word in (
        "touch",
        "started_run",
        "rm ",
        "example.com:443",
        f"127.0.0.1:{world.arguments[1]}",
        str(world.folder / "socket"),
    ):
        assert word in text, word
    if protection == NAMESPACES:
        for name in ("native_open", "native_unlink", "posix", "fileio", "attached.db"):
            assert str(world.folder / name) in text, name


LONG = {("estimate", HOOKS), ("dry", NAMESPACES), ("doctor", HOOKS)}  # the ways of the others, in other words
EACH = [
    pytest.param(command, protection, marks=pytest.mark.slow)
    if (command, protection) in LONG
    else (command, protection)
    for protection in (NAMESPACES, HOOKS)
    for command in COMMANDS
]


@pytest.mark.parametrize(("command", "protection"), EACH, indirect=["protection"])
def test_a_script_of_all_ways_changes_nothing(command, protection, world, call, tmp_path):
    status, out, err = call(protection, *COMMANDS[command], str(SCRIPT), *world.arguments)
    assert status == 0 or command == "doctor", err + out
    if command in ("estimate", "dry"):
        effects = json.loads(out)["effects"]
        assert effects["protection"] == protection
        says(json.dumps(effects), world, protection)
    else:
        assert "kept from this" in out
        assert "more" in out
    if command == "check":
        says((tmp_path / "page.html").read_text(), world, protection)


@both
def test_nor_does_a_plan_of_one(protection, world, call):
    words = (
        "plan",
        "--script",
        str(SCRIPT),
        "--arguments",
        " ".join(world.arguments),
        "--target",
        "trn1.2xlarge",
        "--instances",
        "1..1",
        "--global-batch",
        "16",
        "--no-cache",
    )
    status, _, err = call(protection, *words)
    assert status == 0, err
    assert "kept from this" in err


@both
def test_a_script_that_ends_its_process_is_told_of(protection, world, call, tmp_path):
    """By a signal, so that nothing of Python runs any more."""
    victim = str(world.folder / "open")
    Path("ends.py").write_text(f"import os, signal\nopen({victim!r}, 'w').write('x')\nos.kill(os.getpid(), 9)\n")
    status, out, _ = call(protection, "check", *TARGET, "ends.py")
    assert status == 1
    assert "TRN583" in out
    assert "SIGKILL" in out
    assert f"write  {world.folder / 'open'}" in out
    status, _, err = call(protection, "compile", *TARGET, "ends.py")
    assert status == 2
    assert "TRN583" in err


LEGAL = """
import glob, json, multiprocessing, os, pickle, shutil, sqlite3
if __name__ == "__main__":
    import numpy as np, torch, torch.distributed.checkpoint as dcp, torch.nn.functional as F
    from safetensors.torch import load_file, save_file
    from torch import nn
    from trnlab.frontends.torch import compile_step
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 24
        def __getitem__(self, i):
            return torch.full((16,), float(i)), i % 4
    model = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 30000)).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    step = compile_step(model, optimizer, lambda m, x, y: F.cross_entropy(m(x), y))
    os.makedirs("ck", exist_ok=True)
    for i, (x, y) in enumerate(torch.utils.data.DataLoader(Rows(), 8, num_workers=2)):
        step(x.to("neuron"), y.to("neuron"))
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "x": x}
        state["random"] = torch.get_rng_state()
        torch.save(state, f"ck/{i}.tmp")
        os.replace(f"ck/{i}.tmp", f"ck/{i}.pt")
        for path in sorted(glob.glob("ck/*.pt"))[:-2]:
            os.remove(path)
        assert len(os.listdir("ck")) == min(i + 1, 2)
        found = torch.load(f"ck/{i}.pt", weights_only=True)
        assert torch.equal(found["x"], x)
        torch.set_rng_state(found["random"])
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        save_file(model.state_dict(), "model.safetensors")
        assert load_file("model.safetensors")["1.weight"].shape == (30000, 4)
        dcp.save(model.state_dict(), checkpoint_id="dcp")
        dcp.load(model.state_dict(), checkpoint_id="dcp")
    values = np.memmap("values", np.float32, "w+", shape=(100,))
    values[:] = 3
    values.flush()
    assert np.memmap("values", np.float32, "r").sum() == 300
    with sqlite3.connect("log.db") as log:
        log.execute("create table t(x)")
        log.execute("insert into t values(7)")
    assert sqlite3.connect("log.db").execute("select x from t").fetchall() == [(7,)]
    shutil.rmtree("old")
    assert not os.path.exists("old")
    os.rename("kept", "old")
    assert open("old/file").read() == "kept"
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), "jit.pt")
    torch.jit.load("jit.pt")
    pickle.dump([1], open("p", "wb"))
    assert pickle.load(open("p", "rb")) == [1]
"""


@both
def test_a_script_finds_what_it_wrote(protection, call, tmp_path):
    for name in ("old", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    Path("train.py").write_text(LEGAL)
    status, out, _ = call(protection, "check", *TARGET, "--json", "train.py")
    report = json.loads(out)
    assert status == 0, report["findings"]
    assert report["steps"] == 3
    assert not [o for o in report["operators"] if o["status"] == "host"]
    effects = report["effects"]
    assert [Path(m["from"]).name for m in effects["moved"]] in ([], ["kept"])
    assert {Path(w["path"]).name for w in effects["written"]} >= {"1.pt", "2.pt", "model.safetensors", "log.db"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["kept", "old", "train.py"]
    assert (tmp_path / "old" / "file").read_text() == "old"


ALLOWED = """
import pathlib, subprocess
pathlib.Path("made").write_text(subprocess.run(["echo", "x"], capture_output=True, text=True).stdout)
"""


def test_what_is_allowed_happens(call, world, tmp_path, monkeypatch):
    """--allow, by words."""
    Path("train.py").write_text(ALLOWED)
    status, out, _ = call(HOOKS, "check", *TARGET, "--allow", "subprocesses", "train.py")
    assert "write  " + str(tmp_path / "made") in out
    assert not (tmp_path / "made").exists()
    call(HOOKS, "check", *TARGET, "--allow", "files,subprocesses", "train.py")
    assert (tmp_path / "made").read_text() == "x\n"
    status, _, err = call(HOOKS, "check", *TARGET, "--allow", "everything", "train.py")
    assert status == 2
    assert "everything" in err


CALLER = """
import atexit
from trnlab.view.followed import follow
from trnlab.view.request import ViewRequest
atexit.register(lambda: print("of the caller", file=open("ends", "a")))
print(follow(ViewRequest("os:getcwd", (), allowed=frozenset({"files"})), lambda *_: None)[0])
"""


def test_what_the_caller_does_at_its_end_is_not_the_scripts(tmp_path):
    """The script's process is a copy of the caller's where that has no framework and no thread."""
    ended = subprocess.run([sys.executable, "-c", CALLER], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout == f"{tmp_path}\n"
    assert (tmp_path / "ends").read_text() == "of the caller\n"
