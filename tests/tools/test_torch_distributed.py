# SPDX-License-Identifier: Apache-2.0
"""What is said of PyTorch's own tests: a listed one is told apart only where it fails as the list says."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tools.torch_distributed.__main__ import run
from tools.torch_distributed.file import _sessions
from tools.torch_distributed.files import INSTALLED, LIMIT_S, chosen, limit_of, table
from tools.torch_distributed.unfit import UNFIT, judged, listed

FILE = "torch.testing._internal.distributed.distributed_test"


def verdict(test, verdict, reason, file=FILE):
    return judged({"test": f"Collectives.{test}", "verdict": verdict, "reason": reason}, file)["verdict"]


def test_a_listed_test_is_told_apart_by_how_it_fails():
    assert verdict("test_all_to_all_cuda", "failed", "IndexError: list index out of range") == UNFIT
    assert verdict("test_all_to_all_cuda", "failed", "TRN270: ranks disagree") == "failed"
    assert verdict("test_all_to_all_cuda", "passed", "") == "passed"
    assert verdict("test_all_reduce_sum", "failed", "IndexError: list index out of range") == "failed"
    assert verdict("test_all_to_all_cuda", "failed", "list index out of range", "test_other.py") == "failed"


def test_every_entry_says_why_and_how():
    assert listed()
    for (file, test), known in listed().items():
        assert file
        assert test.startswith("test_")
        assert known.says
        assert len(known.reason.split()) > 2


def test_every_file_is_run_or_has_a_reason(tmp_path):
    for name, entry in table().items():
        assert (entry.ranks > 0) != bool(entry.left_out), name
        if name.endswith(".py") and entry.ranks:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
    ran = chosen(tmp_path)
    assert ran[0] == (INSTALLED, 4)
    assert len(ran) == 1 + sum(entry.ranks > 0 for entry in table().values())
    assert chosen(tmp_path, "tensor/test_dtensor.py") == [(str(tmp_path / "tensor/test_dtensor.py"), 4)]


def test_a_file_whose_tests_take_long_has_a_limit_of_its_own():
    long = {name: entry.limit_s for name, entry in table().items() if entry.limit_s != LIMIT_S}
    assert long
    assert all(limit_of(f"/somewhere/test/distributed/{name}") == limit_s > LIMIT_S for name, limit_s in long.items())
    assert limit_of("/somewhere/test/distributed/test_other.py") == LIMIT_S == limit_of(INSTALLED)


TESTS = """
import os, time, unittest
class Plain(unittest.TestCase):
    def test_a_passes(self): pass
    def test_b_fails(self): self.assertEqual(1, 2)
    def test_c_is_skipped(self): self.skipTest("for a reason")
    def test_d_ends_the_process(self): os._exit(3)
    def test_e_is_refused(self): raise RuntimeError("UnsupportedOpError: TRN248: 1 operator cannot run")
    def test_f_has_a_process_of_its_own(self): self.assertNotIn("SEEN", os.environ); os.environ["SEEN"] = "1"
    def test_g_does_not_see_that_one(self): self.assertNotIn("SEEN", os.environ)
"""


@pytest.mark.torch
def test_tests_have_processes_of_their_own_and_their_ends_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    file = tmp_path / "test_plain.py"
    file.write_text(TESTS)
    verdicts = {each["test"]: each["verdict"] for each in run(str(file), 1, 60.0)}
    said = ["passed", "failed", "skipped", "failed", "refused", "passed", "passed"]
    assert list(verdicts.values()) == said


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_entries_of_what_is_installed_name_tests_of_it(monkeypatch):
    monkeypatch.setenv("BACKEND", "neuron")
    monkeypatch.setenv("WORLD_SIZE", "4")
    from torch.testing._internal.distributed import distributed_test

    there = dir(distributed_test.DistributedTest._DistTestBase)
    assert [test for file, test in listed() if file == "distributed_test" and test not in there] == []


def test_what_a_rank_waits_for_counts_as_its_work():
    """A test that only waits for a process that it started is no test that hangs."""
    waits = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    waiting = subprocess.Popen([sys.executable, "-c", waits], start_new_session=True)
    try:
        until = time.monotonic() + 60
        while sum(used for session, used in _sessions() if session == waiting.pid) < 100:
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        os.killpg(waiting.pid, signal.SIGKILL)
        waiting.wait()
