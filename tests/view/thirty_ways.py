# ruff: noqa: SIM115  (files are left open, as scripts do)
"""A training script that tries to change, delete, move, start and send by every way there is. Arguments: a folder of
victims, the ports of HTTP, TCP and UDP listeners, and a process that others need."""

import atexit
import contextlib
import csv
import ctypes
import dbm
import gzip
import io
import json
import logging
import mmap
import multiprocessing
import os
import pickle
import posix
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import threading
import urllib.request
import zipfile
from pathlib import Path

WHOLE = __name__ != "__mp_main__"  # a process that is started anew has only to write a file
if WHOLE:
    import numpy as np
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    from torch import nn
    from torch.nn import functional as F

    from trnlab.frontends.torch import compile_step

FOLDER = Path(sys.argv[1])
HTTP, TCP, UDP, PROCESS = map(int, sys.argv[2:6])


def at(name):
    return str(FOLDER / name)


def overwrite(name):
    with open(at(name), "wb") as file:
        file.write(b"overwritten")


def numbered(names, function):
    return {name: (lambda name=name: function(name)) for name in names}


def edit(name):
    with open(at(name), "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[:3] = b"new"


def native_open():
    libc = ctypes.CDLL(None)
    handle = libc.open(at("native_open").encode(), os.O_WRONLY | os.O_TRUNC)
    libc.write(handle, b"native", 6)


def sql():
    connection = sqlite3.connect(at("sql.db"))
    connection.execute("delete from t")
    connection.commit()
    connection.close()


def attach():
    connection = sqlite3.connect(":memory:")
    connection.execute(f"attach database '{at('attached.db')}' as other")
    connection.execute("delete from other.t")
    connection.commit()


def gained(path, mode):
    with contextlib.closing(dbm.open(path, mode)) as base:
        base["a"] = "b"


def memory():
    values = np.memmap(at("memmap"), np.uint8, "r+")
    values[:] = 1
    values.flush()


def spread(kind):
    process = multiprocessing.get_context(kind).Process(target=overwrite, args=(f"by_{kind}",))
    process.start()
    process.join(60)


def own_fork():
    child = os.fork()
    if child == 0:
        overwrite("own_fork")
        os._exit(0)
    os.waitpid(child, 0)


def on_signal():
    signal.signal(signal.SIGUSR1, lambda *_: overwrite("on_signal"))
    signal.raise_signal(signal.SIGUSR1)


class Dying:
    def __del__(self):
        overwrite("dying")


class Writing(torch.utils.data.Dataset if WHOLE else object):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        overwrite("by_worker")
        return torch.zeros(16), index % 4


def post():
    urllib.request.urlopen(f"http://127.0.0.1:{HTTP}/run", data=b"loss=1", timeout=5).read()


def tcp():
    socket.create_connection(("127.0.0.1", TCP), timeout=5).sendall(b"x")


def udp():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", UDP))


def to_socket():
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(at("socket"))
        line.sendall(b"x")


def log():
    handler = logging.FileHandler(at("log.txt"))
    handler.emit(logging.makeLogRecord({"msg": "said"}))


def by_handle():
    with open(at("by_handle"), "rb") as file:
        os.fchmod(file.fileno(), 0o600)


def archive():
    with zipfile.ZipFile(at("archive.zip"), "w") as file:
        file.writestr("a", "b")


def tar():
    with tarfile.open(at("tar.tar"), "w") as file:
        file.add(__file__)


def table():
    with open(at("table.csv"), "w") as file:
        csv.writer(file).writerow([1])


model = nn.Linear(16, 4).to("neuron") if WHOLE else None
WAYS = {
    "open": lambda: overwrite("open"),
    "append": lambda: open(at("append"), "a").write("x"),
    "path": lambda: Path(at("path")).write_text("x"),
    "low": lambda: os.write(os.open(at("low"), os.O_WRONLY | os.O_TRUNC), b"x"),
    "fileio": lambda: io.FileIO(at("fileio"), "w").write(b"x"),
    "relative": lambda: (os.chdir(FOLDER), open("relative", "w").write("x")),
    "remove": lambda: os.remove(at("remove")),
    "unlink": lambda: Path(at("unlink")).unlink(),
    "posix": lambda: posix.unlink(at("posix")),
    "rename": lambda: os.rename(at("rename"), at("renamed")),
    "replace": lambda: (Path(at("replace.tmp")).write_text("x"), os.replace(at("replace.tmp"), at("replace"))),
    "rmtree": lambda: shutil.rmtree(at("rmtree")),
    "move": lambda: shutil.move(at("move"), at("moved")),
    "folder": lambda: os.rename(at("folder"), at("folder2")),
    "copy": lambda: shutil.copy(__file__, at("copy")),
    "mkdir": lambda: os.makedirs(at("made/inside")),
    "rmdir": lambda: os.rmdir(at("rmdir")),
    "symlink": lambda: os.symlink("open", at("symlink")),
    "link": lambda: os.link(at("linked"), at("link")),
    "truncate": lambda: os.truncate(at("truncate"), 1),
    "chmod": lambda: os.chmod(at("chmod"), 0o777),
    "utime": lambda: os.utime(at("utime"), (1, 1)),
    "by_handle": by_handle,
    "numpy": lambda: np.save(at("numpy.npy"), np.zeros(3)),
    "tofile": lambda: np.zeros(3).tofile(at("tofile")),
    "memmap": memory,
    "mmap": lambda: edit("mmap"),
    "pickle": lambda: pickle.dump([1], open(at("pickle"), "wb")),
    "json": lambda: json.dump([1], open(at("json"), "w")),
    "table": table,
    "gzip": lambda: gzip.open(at("gzip"), "wb").write(b"x"),
    "archive": archive,
    "tar": tar,
    "log": log,
    "safetensors": lambda: save_file({"a": torch.zeros(3)}, at("safetensors")),
    "large": lambda: save_file({"a": torch.zeros(300_000)}, at("large")),
    "torch": lambda: torch.save(model.state_dict(), at("torch")),
    "legacy": lambda: torch.save([torch.zeros(3)], at("legacy"), _use_new_zipfile_serialization=False),
    "jit": lambda: torch.jit.save(torch.jit.script(nn.Linear(2, 2)), at("jit")),
    "dcp": lambda: dcp.save(model.state_dict(), checkpoint_id=at("dcp")),
    "later": lambda: dcp.async_save({"a": torch.zeros(3)}, checkpoint_id=at("later")).result(),
    "sql": sql,
    "attach": attach,
    "dbm": lambda: gained(at("dbm"), "c"),
    "native_open": native_open,
    "native_unlink": lambda: ctypes.CDLL(None).unlink(at("native_unlink").encode()),
    "native_system": lambda: ctypes.CDLL(None).system(f"touch {at('started_system')}".encode()),
    "run": lambda: subprocess.run(["touch", at("started_run")], check=True),
    "system": lambda: os.system(f"rm {at('open')}"),
    "spawned": lambda: os.posix_spawn("/bin/touch", ["touch", at("started_spawn")], dict(os.environ)),
    "thread": lambda: (t := threading.Thread(target=overwrite, args=("thread",)), t.start(), t.join()),
    "own_fork": own_fork,
    "fork": lambda: spread("fork"),
    "spawn": lambda: spread("spawn"),
    "worker": lambda: list(torch.utils.data.DataLoader(Writing(), 2, num_workers=1)),
    "signal": on_signal,
    "dying": Dying,
    "post": post,
    "tcp": tcp,
    "udp": udp,
    "to_socket": to_socket,
    "away": lambda: socket.create_connection(("example.com", 443), timeout=5),
    "kill": lambda: os.kill(PROCESS, signal.SIGKILL),
}

if __name__ == "__main__":
    for way in WAYS.values():
        with contextlib.suppress(Exception):
            way()
    atexit.register(overwrite, "atexit")
    threading.Thread(target=lambda: (threading.main_thread().join(), overwrite("late_thread"))).start()
    step = compile_step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x, y: F.cross_entropy(m(x), y))
    for _ in range(2):
        step(torch.randn(8, 16).to("neuron"), torch.randint(4, (8,)).to("neuron"))
    overwrite("after")
