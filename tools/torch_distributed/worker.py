# SPDX-License-Identifier: Apache-2.0
"""One rank, which runs tests of one file one after the other: starting a process for each takes longer than the test.

    python -m tools.torch_distributed.worker FILE RANK RANKS FOLDER TEST...

PyTorch's test cases start a process per rank and test, which calls `_run` of the class; that is what is called here.
A line of JSON per test goes into FOLDER/RANK.jsonl. FILE is a module's name, or a file.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import multiprocessing
import os
import re
import sys
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

AGAIN = 17  # exit status that asks for new processes
PASSED, SKIPPED, REFUSED, FAILED = "passed", "skipped", "refused", "failed"


_HINTS = ("To execute this test", "    python test/", "This message can be suppressed")
_CUDA = ("compiled with CUDA", "NVIDIA driver", "have NCCL built in")


def load(file: str) -> Any:
    """The module, by name or file."""
    if not file.endswith(".py"):
        return importlib.import_module(file)
    admit(int(os.environ["WORLD_SIZE"]))
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def admit(ranks: int) -> None:
    """What PyTorch's test cases list by the vendor's name and have no entry for another device of.

    DTensor's have a list of backends, in which one for any device stands beside gloo only; FSDP's have a device, a
    backend and a number of devices; and the decorators that skip count the accelerators of three vendors.
    """
    from torch.testing._internal import common_distributed, common_fsdp
    from torch.testing._internal.distributed._tensor import common_dtensor

    backend = property(lambda self: "cpu:gloo,neuron:neuron")
    common_dtensor.DTensorTestBase.backend = backend  # type: ignore[assignment]
    common_dtensor.NUM_DEVICES = min(4, ranks)
    common_fsdp.DEVICE_TYPE, common_fsdp.DISTRIBUTED_BACKEND = "neuron", "neuron"
    common_fsdp.DEVICE_COUNT = common_fsdp.FSDPTestContinuous.world_size = ranks
    common_distributed.at_least_x_gpu = lambda x: ranks >= x
    common_distributed.skip_if_lt_x_gpu = lambda x, **_: lambda test: test  # of ranks, `run` counts them


def cases(module: Any) -> list[str]:
    """Class.test of all tests of a module."""
    if module.__name__.endswith("distributed_test"):
        return [f"Collectives.{name}" for name in dir(collectives_of(module)) if name.startswith("test_")]
    found = unittest.defaultTestLoader.loadTestsFromModule(module)
    listed = []
    for suite in found:
        listed += [f"{type(case).__name__}.{case._testMethodName}" for case in suite if hasattr(case, "id")]
    return listed


def collectives_of(module: Any) -> Any:
    """The tests of c10d that come with PyTorch are a mixin."""
    base, mixin = module.TestDistBackend, module.DistributedTest._DistTestBase
    return type("Collectives", (mixin, base), {"__module__": module.__name__})


def run(cls: Any, name: str, rank: int, ranks: int, meet: str) -> tuple[str, str]:
    """One test on this rank: verdict and reason."""
    import torch.distributed as dist
    from torch.testing._internal import common_distributed as common

    skips = {skip.exit_code: skip.message for skip in common.TEST_SKIPS.values()}
    ours, theirs = multiprocessing.Pipe()
    try:
        if continuous(cls):
            in_a_row(cls, name, rank, ranks, meet)
        elif issubclass(cls, common.MultiProcessTestCase):
            wanted = wanted_by(cls, name, ranks)
            if rank < wanted:
                cls._run(rank, name, meet, theirs)
        elif rank == 0:
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

    cls.rank, cls.world_size = rank, ranks
    if not dist.is_initialized():
        cls._init_pg(rank, ranks, meet)
    cls.setUpClass()
    cls._run_test_given_id(f"{cls.__name__}.{name}")


def wanted_by(cls: Any, name: str, ranks: int) -> int:
    """How many of the ranks a test takes. Raises SkipTest where it wants more."""
    os.environ["WORLD_SIZE"] = str(ranks)
    wanted = int(cls(name).world_size)
    if wanted > ranks:
        raise unittest.SkipTest(f"wants {wanted} ranks")
    os.environ["WORLD_SIZE"] = str(wanted)
    return wanted


def said(pipe: Any) -> str:
    """What a test sent of its exception."""
    try:
        return str(pipe.recv()) if pipe.poll(0) else ""
    except EOFError:  # it closed the pipe without a word
        return ""


def alone(cls: Any, test: str) -> tuple[str, str]:
    """A test that starts no processes, or its own."""
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):  # which those would take for theirs
        os.environ.pop(name, None)
    result = unittest.TestResult()
    cls(test).run(result)
    bad = [*result.failures, *result.errors]
    if bad:
        return verdict_of(bad[0][1])
    return (SKIPPED, result.skipped[0][1]) if result.skipped else (PASSED, "")


def verdict_of(trace: str) -> tuple[str, str]:
    """A refusal with a code is one; everything else failed. The reason is the end of the trace."""
    lines = [line for line in trace.strip().splitlines() if line.strip() and not line.startswith(_HINTS)]
    told = next((line for line in reversed(lines) if ": TRN" in line or line.strip().startswith("TRN")), "")
    end = next((line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)), lines[-1])
    if any(text in end for text in _CUDA):
        return SKIPPED, "asks for CUDA: " + end
    refused = any(f"TRN{code}" in told for code in (*range(151, 170), *range(200, 270), 274, 275, 183, 285))
    return (REFUSED, told.strip()) if refused else (FAILED, (told or end).strip() + "\n" + "\n".join(lines[-12:]))


def main(file: str, rank: int, ranks: int, folder: Path, tests: list[str]) -> None:
    """Run and write."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    module = load(file)
    for test in tests:
        kind, name = test.split(".")
        cls = collectives_of(module) if kind == "Collectives" else getattr(module, kind)
        started = time.monotonic()
        if kind == "Collectives":
            prepare_files(module, folder / test)
        verdict, reason = run(cls, name, rank, ranks, str(folder / f"meet-{kind if continuous(cls) else test}"))
        line = {"test": test, "verdict": verdict, "reason": reason, "seconds": time.monotonic() - started}
        with (folder / f"{rank}.jsonl").open("a") as out:
            out.write(json.dumps(line) + "\n")
        if verdict == FAILED and continuous(cls):
            os._exit(AGAIN)  # the tests of this class share a process group
    os._exit(0)


def prepare_files(module: Any, folder: Path) -> None:
    """The folders that the tests of c10d meet in, fresh for each: one that failed leaves others in the middle."""
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)
    module.Barrier.barrier_id = 0


def continuous(cls: Any) -> bool:
    """Whether all tests of a class share a process group."""
    from torch.testing._internal.common_distributed import MultiProcContinuousTest

    return issubclass(cls, MultiProcContinuousTest)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
