# SPDX-License-Identifier: Apache-2.0
"""What is said of PyTorch's own tests: a listed one is told apart only where it fails as the list says."""

import pytest

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


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_entries_of_what_is_installed_name_tests_of_it(monkeypatch):
    monkeypatch.setenv("BACKEND", "neuron")
    monkeypatch.setenv("WORLD_SIZE", "4")
    from torch.testing._internal.distributed import distributed_test

    there = dir(distributed_test.DistributedTest._DistTestBase)
    assert [test for file, test in listed() if file == "distributed_test" and test not in there] == []
