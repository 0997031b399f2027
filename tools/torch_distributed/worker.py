# SPDX-License-Identifier: Apache-2.0
"""One rank, which runs a test, or those of a class that share a process group.

PyTorch's test cases start a process per rank and test, which calls `_run` of the class; that is what is called here.
A line of JSON per test goes into FOLDER/RANK.jsonl.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import re
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

CUDAS_WORDS = "TESTS_SAY_CUDA"  # the variable that says so of a file's tests
AGAIN = 17  # exit status that asks for new processes
PASSED, SKIPPED, REFUSED, FAILED = "passed", "skipped", "refused", "failed"
REFUSALS = (*range(151, 170), *range(200, 270), 274, 275, 183, 285, 286)  # codes of what trnlab does not have


_HINTS = ("To execute this test", "    python test/", "This message can be suppressed")
_CUDA = ("compiled with CUDA", "NVIDIA driver", "have NCCL built in", "dummy base class", "no attribute '_sleep'")


def cases(module: Any) -> list[str]:
    """Class.test of all tests of a module."""
    if module.__name__.endswith("distributed_test"):
        return [f"Collectives.{name}" for name in dir(collectives_of(module)) if name.startswith("test_")]
    vars(module).pop("load_tests", None)  # which wants to be in the script that runs
    found: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(module)]
    listed = []
    while found:
        each = found.pop(0)
        if isinstance(each, unittest.TestSuite):
            found[:0] = list(each)
        elif isinstance(each, unittest.loader._FailedTest):  # type: ignore[attr-defined]
            raise each._exception
        else:
            listed.append(f"{type(each).__name__}.{each._testMethodName}")
    return listed


def collectives_of(module: Any) -> Any:
    """The tests of c10d that come with PyTorch are a mixin."""
    base, mixin = module.TestDistBackend, module.DistributedTest._DistTestBase
    return type("Collectives", (mixin, base), {"__module__": module.__name__})


def class_of(module: Any, test: str) -> Any:
    """The class of Class.test."""
    kind = test.partition(".")[0]
    return collectives_of(module) if kind == "Collectives" else getattr(module, kind)


def ranks_of(cls: Any, name: str, ranks: int) -> int:
    """How many of the ranks a test takes: one where it starts no processes, or its own. Raises SkipTest where it
    wants more."""
    from torch.testing._internal import common_distributed as common

    if continuous(cls):
        said = inspect.getattr_static(cls, "world_size", -2)
        wanted = said if isinstance(said, int) else int(cls._get_world_size("neuron"))
        wanted = ranks if wanted < 0 else wanted
    else:
        wanted = int(cls(name).world_size) if issubclass(cls, common.MultiProcessTestCase) else 1
    if not 0 < wanted <= ranks:
        raise unittest.SkipTest(f"wants {wanted} ranks")
    return wanted


def run(cls: Any, name: str, rank: int, ranks: int, meet: str) -> tuple[str, str]:
    """One test on this rank: verdict and reason."""
    if not os.environ.get(CUDAS_WORDS):
        return run_as_it_is(cls, name, rank, ranks, meet)
    from tools.torch_distributed import cudas_words

    cudas_words.install()
    with cudas_words.CudaIsNeuron():
        return run_as_it_is(cls, name, rank, ranks, meet)


def run_as_it_is(cls: Any, name: str, rank: int, ranks: int, meet: str) -> tuple[str, str]:
    """The same, whatever devices it names."""
    import torch.distributed as dist
    from torch.testing._internal import common_distributed as common

    skips = {skip.exit_code: skip.message for skip in common.TEST_SKIPS.values()}
    ours, theirs = multiprocessing.Pipe()
    try:
        if continuous(cls):
            in_a_row(cls, name, rank, ranks, meet)
        elif issubclass(cls, common.MultiProcessTestCase):
            cls._run(rank, name, meet, theirs)
        else:
            return alone(cls, name)
    except unittest.SkipTest as skip:
        return SKIPPED, str(skip)
    except SystemExit as end:
        told = said(ours)
        if end.code in skips:
            return SKIPPED, skips[end.code]
        return (PASSED, "") if not end.code else verdict_of(told)
    except BaseException:
        return verdict_of(traceback.format_exc())
    finally:
        if dist.is_initialized() and not continuous(cls):
            dist.destroy_process_group()
    return PASSED, ""


def in_a_row(cls: Any, name: str, rank: int, ranks: int, meet: str) -> None:
    """A test of a class whose tests share a process group."""
    import torch.distributed as dist

    for each in (cls, getattr(cls, name)):
        if getattr(each, "__unittest_skip__", False):
            raise unittest.SkipTest(str(getattr(each, "__unittest_skip_why__", "")))
    cls.rank, cls.world_size = rank, ranks
    if not dist.is_initialized():
        cls._init_pg(rank, ranks, meet)
    cls.setUpClass()
    cls._run_test_given_id(f"{cls.__name__}.{name}")


def said(pipe: Any) -> str:
    """What a test sent of its exception."""
    try:
        return str(pipe.recv()) if pipe.poll(0) else ""
    except EOFError:  # it closed the pipe without a word
        return ""


def alone(cls: Any, test: str) -> tuple[str, str]:
    """A test that starts no processes, or its own."""
    result = unittest.TestResult()
    unittest.TestSuite([cls(test)]).run(result)
    bad = [*result.failures, *result.errors]
    if bad:
        return verdict_of(bad[0][1])
    return (SKIPPED, result.skipped[0][1]) if result.skipped else (PASSED, "")


def verdict_of(trace: str) -> tuple[str, str]:
    """A refusal with a code is one; everything else failed. The reason is the end of the trace."""
    lines = [line for line in trace.strip().splitlines() if line.strip() and not line.startswith(_HINTS)]
    told = next((line for line in reversed(lines) if ": TRN" in line or line.strip().startswith("TRN")), "")
    end = next((line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)), "")
    end = end or (lines[-1] if lines else "no word of it")
    if any(text in end for text in _CUDA):
        return SKIPPED, "asks for CUDA: " + end
    refused = any(f"TRN{code}" in told for code in REFUSALS)
    return (REFUSED, told.strip()) if refused else (FAILED, (told or end).strip() + "\n" + "\n".join(lines[-12:]))


def main(module: Any, rank: int, ranks: int, folder: Path, tests: list[str]) -> None:
    """Run and write; ends this process."""
    os.environ["WORLD_SIZE"] = str(ranks)
    for test in tests:
        kind, name = test.split(".")
        started = time.monotonic()
        if kind == "Collectives":
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
            prepare_files(module, folder)
        verdict, reason = run(class_of(module, test), name, rank, ranks, str(folder / "meet"))
        line = {"test": test, "verdict": verdict, "reason": reason, "seconds": time.monotonic() - started}
        with (folder / f"{rank}.jsonl").open("a") as out:
            out.write(json.dumps(line) + "\n")
        if verdict in (FAILED, REFUSED):
            os._exit(AGAIN)  # who knows what it left behind
    os._exit(0)


def prepare_files(module: Any, folder: Path) -> None:
    """The folders that the tests of c10d meet in."""
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
    module.Barrier.barrier_id = 0


def continuous(cls: Any) -> bool:
    """Whether all tests of a class share a process group."""
    from torch.testing._internal.common_distributed import MultiProcContinuousTest

    return issubclass(cls, MultiProcContinuousTest)


def plays_ranks(cls: Any) -> bool:
    """Whether one process plays all ranks of a class's tests (`LocalTensor`)."""
    from torch.testing._internal.distributed._tensor import common_dtensor

    names = ("LocalDTensorTestBase", "LocalDTensorOpTestBase", "LocalDTensorContinuousTestBase")
    return issubclass(cls, tuple(getattr(common_dtensor, name) for name in names))
