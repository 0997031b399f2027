# SPDX-License-Identifier: Apache-2.0
"""A copy of a process that has imported is, to a script, the new process that it stands for."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests import processes
from trnlab.runtime.jobs import forks
from trnlab.runtime.jobs.leading_imports import leading

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not forks.possible(), reason="no copies of processes here")]
TELLS = """
import atexit, os, sys, threading, signal, warnings
print(sys.argv, __name__, sys.path[0], globals().get("__file__"), os.getcwd(), os.environ.get("TOLD"))
print(sys.modules["__main__"].__dict__ is globals(), threading.active_count(), len(os.listdir("/proc/self/task")))
print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGCHLD))
print(len(os.listdir("/proc/self/fd")), sys.stdin.read(), sys.stdout.encoding, sys.stderr.errors, sys.warnoptions)
print(sys.stdin, sys.stdout, sys.stderr, [each.write_through for each in (sys.stdin, sys.stdout, sys.stderr)])
print([(each.buffer, each.line_buffering) for each in (sys.stdin, sys.stdout, sys.stderr)])
warnings.warn("warned")
print("to the other", file=sys.stderr)
atexit.register(lambda: print("at the end"))
sys.exit(7)
"""
ENDS = [
    ("1", 0),
    ("import sys; sys.exit('said')", 1),
    ("import sys; sys.exit(300)", 44),
    ("1 / 0", 1),
    ("import os; os._exit(5)", 5),
    ("raise KeyboardInterrupt", -signal.SIGINT),
    ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
]
DRAWS = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"


def without_pids(text):
    return re.sub(r"0x[0-9a-f]+", "0x", text)


@pytest.mark.parametrize("form", ["script", "-m", "-c"])
def test_a_copy_is_what_a_new_process_is(tmp_path, form):
    (tmp_path / "tells.py").write_text(TELLS)
    what = {"script": ["tells.py"], "-m": ["-m", "tells"], "-c": ["-c", TELLS]}[form]
    environment = {
        **os.environ,
        "TOLD": "this",
        "PYTHONWARNINGS": "always,ignore:other",
        "PYTHONIOENCODING": "latin-1",
    }
    environment |= {"PYTHONUNBUFFERED": ""} if form == "script" else {"PYTHONUNBUFFERED": "1"}
    given = {"cwd": tmp_path, "env": environment, "input": "and read", "text": True}
    new = subprocess.run([sys.executable, *what, "a b"], capture_output=True, **given)
    copy = processes.run([sys.executable, *what, "a b"], **given)
    assert new.returncode == copy.returncode == 7
    assert without_pids(copy.stdout) == without_pids(new.stdout)
    assert copy.stderr == new.stderr


def test_it_ends_as_a_new_process_ends():
    for code, status in ENDS:
        copy = processes.run([sys.executable, "-c", code])
        assert copy.returncode == status, code
        assert "forking" not in copy.stderr
        if "said" in code:
            assert copy.stderr == "said\n"
        if "/" in code:
            assert copy.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_random_numbers_are_those_of_new_processes():
    first, second = (processes.run([sys.executable, "-c", DRAWS]).stdout.split() for _ in range(2))
    assert len(first) == 3
    assert not set(first) & set(second)


def test_signals_reach_it_and_its_end_is_known(tmp_path):
    waits = [sys.executable, "-c", "import sys; print('here', flush=True); sys.stdin.read()"]
    # Tests that a shell starts in the background ignore it, and so do their processes.
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    for number in (signal.SIGTERM, *([] if ignored else [signal.SIGINT])):
        process = processes.start(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with process.stdin, process.stdout:
            assert process.stdout.readline() == b"here\n"
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.01)
            process.send_signal(number)
            assert process.wait(60) == -number
        process.send_signal(number)  # to nobody


def test_copies_go_on_when_the_one_that_waits_is_gone():
    waiting = forks.Forks((("json", ()),), os.environ)
    reads, writes = os.pipe()
    copy = waiting.start(["-c", "import sys; sys.stdin.read(); print('done')"], dict(os.environ), [1, 2, reads])
    os.close(reads)
    waiting.close()
    with pytest.raises(OSError, match="Bad file"):
        waiting.start(["-c", ""], dict(os.environ), [1, 2])
    os.kill(copy.pid, 0)
    assert copy.poll() == -signal.SIGKILL  # nobody is left who would hear of its end
    os.close(writes)


def test_a_script_begins_with_imports_up_to_what_else_it_does(tmp_path):
    script = tmp_path / "train.py"
    begins = (
        '"""What it is."""\nfrom __future__ import annotations\nimport os, sys\nimport torch.distributed as dist\n'
    )
    known = (("__future__", ("annotations",)), ("os", ()), ("sys", ()), ("torch.distributed", ()))
    for then in (
        "os.environ['OMP_NUM_THREADS'] = '1'",
        "import transformers",
        "from . import beside",
        "x = 1",
        "x =",
    ):
        script.write_text(f"{begins}{then}\nfrom torch import nn, optim\n")
        assert leading(script) == (() if then == "x =" else known), then
    script.write_text(f"{begins}from torch import nn, optim\n")
    assert leading(script) == (*known, ("torch", ("nn", "optim")))
    (tmp_path / "torch").mkdir()  # which is found before PyTorch
    assert leading(script) == known[:3]
    assert leading(tmp_path / "none.py") == ()


def test_processes_that_a_copy_spawns_find_its_script(tmp_path):
    (tmp_path / "spawns.py").write_text(
        "import multiprocessing\n"
        "def work(): print('worked', flush=True)\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    process.start(); process.join(); raise SystemExit(process.exitcode)\n"
    )
    ended = processes.run([sys.executable, "spawns.py"], cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "worked\n"), ended.stderr
