# SPDX-License-Identifier: Apache-2.0
"""Nothing needs what only Linux has: the names that macOS and Windows lack are hidden in a process of its own.

There a kernel, a compiled training step, the cache with its leases, and the command line run as they do here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HIDE = """
import asyncio, importlib.metadata, multiprocessing, os, runpy, selectors, signal, subprocess, sys, tempfile, types
sys.modules.pop("trnlab", None)
import llvmlite.binding, ml_dtypes, numba, numpy, scipy
import torch, torch._dynamo, torch._functorch.aot_autograd, torch._inductor

PLATFORM = sys.argv.pop(1)
for module in ("fcntl", "resource", "pwd", "grp", "termios", "select", "posix", "syslog", "tty", "pty"):
    sys.modules[module] = None
for owner, names in (
    (os, "sched_getaffinity sched_setaffinity fork forkpty uname getuid geteuid getgid symlink mkfifo getloadavg "
         "sysconf process_cpu_count O_DIRECTORY O_CLOEXEC killpg"),
    (signal, "SIGKILL SIGALRM SIGHUP SIGUSR1 SIGUSR2 SIGCHLD alarm setitimer pthread_kill"),
):
    for name in names.split():
        if hasattr(owner, name):
            delattr(owner, name)
sys.platform = PLATFORM
assert not [name for name in sys.modules if name.split(".")[0] == "trnlab"], "something was imported before"
"""

WORK = """
from trnlab.frontends.torch.autoload import autoload
autoload()
import numpy as np
import trnlab.nki as nki, trnlab.nki.isa as nisa, trnlab.nki.language as nl

@nki.jit
def double(x):
    out = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.dma_copy(dst=out, src=nl.add(tile, tile))
    return out

assert double(np.ones((128, 4), np.float32)).tolist() == [[2.0] * 4] * 128

from pathlib import Path
from trnlab import chips
from trnlab.frontends.torch import compile_step
from trnlab.runtime import session
from trnlab.runtime.cache.executables import Cache

model = torch.nn.Linear(4, 1).to("neuron")
with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32", cache=Cache(Path("cache")))) as now:
    step = compile_step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x: m(x).square().mean())
    x = torch.ones(8, 4, device="neuron")
    assert step(x).item() > step(x).item()
    (made,) = now.executables.values()
    assert made.cache == "miss"
assert len(Cache(Path("cache")).entries(check=True)) == 1
assert not [p for p in Path("cache").rglob("leases/*/*")], "the lease was given back"

from trnlab.cli.main import main
Path("train.py").write_text("print('trained')")
for arguments in (["chips"], ["cache", "ls", "--cache", "cache"], ["run", "--target", "trn1.2xlarge", "train.py"]):
    assert main(arguments) == 0, arguments
print("all ran")
"""


@pytest.mark.torch
@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_everything_runs_without_what_only_linux_has(tmp_path: Path, platform: str) -> None:
    script = tmp_path / "elsewhere.py"
    script.write_text(textwrap.dedent(HIDE + WORK))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TRNLAB")}
    environment = {**kept, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, script.name, platform],
        cwd=tmp_path,
        env=environment,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all ran"


def test_no_module_imports_what_some_systems_lack() -> None:
    """Such modules are asked for by name, and may be missing."""
    root = Path(__file__).parents[2] / "src" / "trnlab"
    lacking = {"fcntl", "resource", "pwd", "grp", "termios", "msvcrt", "winreg", "select", "syslog"}
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.lstrip().startswith(("import ", "from ")) and lacking & set(line.replace(",", " ").split()[1:2])
    ]
    assert found == []
