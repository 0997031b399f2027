# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that runs nki-library's own tests here: stand-ins for its harness, and a process for each case.

The library's test harness has a mode for a CPU simulator (`--test-mode simulation`), whose only border to the
simulator is the module `test.utils.simulation_setup` (and `kernel_tracer` for cases that are only compiled). This
file takes its place: kernels go to trnlab, and what they return goes back to the harness, which compares it with the
tests' own goldens and tolerances. Besides, the harness imports packages that talk to machines and clouds; none of
them is called in that mode, so empty stand-ins do. Nothing of `nki` is stood in for.

Chosen are the cases that the tests mark `fast`, and of every other test function the smallest case. Each runs in a
forked process under limits of processor time and memory, and leaves a line of JSON in the file that the options name.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import math
import os
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import references

import trnlab.nki
from trnlab.sim.functional import machine

ABSENT = (
    "aws_embedded_metrics",
    "boto3",
    "botocore",
    "fabric2",
    "invoke",
    "pandas",
    "paramiko",
    "plotext",
    "pytest_html",
    "test.utils.perf_analysis_private",
    "test.utils.scripts",
)
BORDER = ("test.utils.simulation_setup", "test.utils.kernel_tracer")
CASTS = ("neuronxcc.starfish", "neuronxcc.starfish.support", "neuronxcc.starfish.support.dtype")
REACHED: list[Any] = []  # what the harness has asked to run
OPTIONS: dict[str, Any] = json.loads(os.environ.get("TRNLAB_CONFORMANCE", "{}"))


class _Anything(ModuleType):
    """A module whose every name is a class of its own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Exception,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _StandIns(MetaPathFinder, Loader):
    """Makes modules of the absent packages, whatever their names."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A module of one of `ABSENT`."""
        mine = any(name == root or name.startswith(root + ".") for root in ABSENT)
        return ModuleSpec(name, self, is_package=True) if mine else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty one."""
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def install() -> None:
    """Put the stand-ins in place; packages that are really here win."""
    trnlab.nki.install_imports(override=True)
    trnlab.nki.tracing.traces.UNWRITTEN = machine.POISON = 0  # the harness gives kernels zeroed memory, on chip, too
    sys.meta_path.append(_StandIns())
    sys.modules |= dict.fromkeys(BORDER, sys.modules[__name__])
    for name in CASTS:  # the vendor's compiler, of which goldens use one cast
        sys.modules[name] = importlib.import_module("trnlab.nki.neuron_dtypes")
    if importlib.util.find_spec("attr") is None:
        sys.modules["attr"] = dataclasses  # the harness takes only `dataclass` from it


# -- the border to the simulator, as the harness calls it ---------------------------------------------------------
def setup_simulation_mode() -> None:
    """Nothing has been compiled, which the harness asks in every mode; outputs of ranks have a folder each."""
    orchestrator = sys.modules["test.utils.test_orchestrator"].Orchestrator  # type: ignore[attr-defined]
    orchestrator._compiled_kernel = None
    write = orchestrator.__dump_tensors__

    def with_folders(self: Any, folder: str, tensors: dict[str, Any], *rest: Any, **more: Any) -> Any:
        for name in tensors:
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        return write(self, folder, tensors, *rest, **more)

    orchestrator.__dump_tensors__ = with_folders


def skip_slow_simulation_tests(items: list[Any], marker: Any) -> None:
    """None is skipped."""


def trace_kernel(case: Any = None, **rest: Any) -> None:
    """Record a case that the tests only compile (`test.utils.kernel_tracer`)."""
    case = case or rest["kernel_under_test"]
    REACHED.append(case)
    _kernel(case).trace(**_inputs(case))


def _kernel(case: Any) -> Any:
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = case.compiler_input.platform_target.get_nc_gen()
    return trnlab.nki.simulate(case.kernel_func)[case.compiler_input.logical_nc_config]


def _inputs(case: Any) -> dict[str, Any]:
    return {name.removesuffix(".must_alias_input"): value for name, value in (case.kernel_input or {}).items()}


def run_simulator_inference(case: Any) -> dict[str, Any]:
    """Outputs of a case (a `KernelArgs` of the harness) by name, in the formats of its goldens."""
    REACHED.append(case)
    golden = case.validation_args.golden_output
    if case.inference_args.collective_ranks > 1:
        return _on_ranks(case, golden, case.inference_args.collective_ranks)
    return _named(_kernel(case)(**_inputs(case)), getattr(golden, "output_ndarray", golden))


def _named(result: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    results = [] if result is None else list(result) if isinstance(result, (list, tuple)) else [result]
    if len(results) != len(wanted):
        raise RuntimeError(f"{len(results)} results, but goldens for {list(wanted)}")
    return {name: _as_golden(np.asarray(found), wanted[name].dtype) for name, found in zip(wanted, results)}


def _as_golden(found: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """A result in the format of its golden; packed formats (four values in one element) keep their bits."""
    packed = (found.dtype.names is None and found.dtype.kind == "V") or str(found.dtype).endswith("_x4")
    return found.view(dtype) if packed and found.dtype.itemsize == np.dtype(dtype).itemsize else found.astype(dtype)


def _on_ranks(case: Any, golden: Any, ranks: int) -> dict[str, Any]:
    """Outputs of every rank, in the folders where the harness looks for them."""
    given = case.kernel_input
    inputs = [given.for_rank(rank) if hasattr(given, "for_rank") else given for rank in range(ranks)]
    differing = {
        name.removesuffix(".must_alias_input"): trnlab.nki.per_rank([np.ascontiguousarray(i[name]) for i in inputs])
        if isinstance(value, np.ndarray)
        else value
        for name, value in inputs[0].items()
    }
    os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = case.compiler_input.platform_target.get_nc_gen()
    simulated = trnlab.nki.simulate(case.kernel_func, ranks=ranks)[case.compiler_input.logical_nc_config]
    results = simulated(**differing)
    found = {}
    for rank, result in enumerate(results):
        mine = golden.for_rank(rank) if hasattr(golden, "for_rank") else getattr(golden, "output_ndarray", golden)
        found |= {f"output_worker_{rank}/{name}": value for name, value in _named(result, mine).items()}
    return found


if OPTIONS:
    install()
    references.install()


# -- which cases --------------------------------------------------------------------------------------------------
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep fast cases and the smallest of every other function, on this platform and not yet run on another."""
    if not OPTIONS:
        return
    fast = [item for item in items if item.get_closest_marker("fast")]
    functions = {_function(item) for item in fast}
    smallest: dict[str, Any] = {}
    for item in items:
        name = _function(item)
        if name not in functions and (name not in smallest or _size(item) < _size(smallest[name])):
            smallest[name] = item
    done = set(OPTIONS.get("done", ()))
    kept = [item for item in items if item in fast or smallest.get(_function(item)) is item]
    kept = _fewest([item for item in kept if OPTIONS["only"] in item.nodeid], OPTIONS["most"])
    items[:] = [item for item in kept if item.nodeid not in done]


def _fewest(items: list[Any], most: int) -> list[Any]:
    """At most so many cases of each function, the smallest ones; 0 is all of them."""
    kept: dict[str, list[Any]] = {}
    for item in sorted(items, key=_size):
        kept.setdefault(_function(item), []).append(item)
    chosen = {id(item) for group in kept.values() for item in group[: most or None]}
    return [item for item in items if id(item) in chosen]


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be imported is a line of its own."""
    if OPTIONS and report.failed:
        line = {"name": report.nodeid, "negative": False, "seconds": 0.0, "outcome": "failed", "reached": False}
        with open(OPTIONS["report"], "a", encoding="utf-8") as stream:
            print(json.dumps(line | {"text": str(report.longrepr)}), file=stream, flush=True)


def _function(item: Any) -> str:
    return str(item.nodeid).split("[")[0]


def _size(item: Any) -> tuple[bool, float]:
    """Cases that must fail come last; then by the product of all whole numbers among the parameters."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return bool(parameters.get("is_negative_test_case")), sum(math.log(n) for n in _numbers(parameters) if n > 1)


def _numbers(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [n for v in value.values() for n in _numbers(v)]
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in _numbers(v)]
    if hasattr(value, "__dataclass_fields__"):
        return _numbers(vars(value))
    return [int(value)] if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else []


# -- running them -------------------------------------------------------------------------------------------------
def pytest_runtestloop(session: Any) -> bool | None:
    """Each case in a process of its own."""
    if not OPTIONS or session.config.option.collectonly:
        return None
    with open(OPTIONS["report"], "a", encoding="utf-8") as report:
        print(json.dumps({"collected": len(session.items)}), file=report, flush=True)
        for item in session.items:
            print(json.dumps(_run_apart(item)), file=report, flush=True)
    return True


def _run_apart(item: Any) -> dict[str, Any]:
    """Fork, run the case there, and tell what became of it."""
    where = Path(OPTIONS["scratch"]) / "case.json"
    where.unlink(missing_ok=True)
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _run_here(item, where)
    line = {"name": item.nodeid, "negative": _size(item)[0], **_wait(child, started)}
    if where.exists():
        line |= json.loads(where.read_text(encoding="utf-8"))
    return line


def _wait(child: int, started: float) -> dict[str, Any]:
    """How the process ended and its seconds on the processor; on a busy machine it may take five times as long."""
    limit = OPTIONS["timeout"]
    while time.monotonic() - started < 5 * limit:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
            text = f"took longer than {limit:.0f} s" if late else f"the process ended with status {status}"
            return {"outcome": "failed", "text": text, "seconds": usage.ru_utime + usage.ru_stime}
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {"outcome": "failed", "text": f"took longer than {limit:.0f} s", "seconds": limit}


def _run_here(item: Any, where: Path) -> None:
    """The forked process: run the case, write what became of it, and leave without a trace."""
    try:
        os.setsid()
        memory = int(OPTIONS["memory"])
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (int(OPTIONS["timeout"]), int(OPTIONS["timeout"])))
        sink = os.open(str(where.with_suffix(".log")), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        np.random.seed(0)
        warnings.simplefilter("ignore")
        from _pytest.runner import runtestprotocol

        reports = runtestprotocol(item, log=False)
        bad = next((r for r in reports if not r.passed), None)
        text = "" if bad is None else _first_cause(bad)
        outcome = "passed" if bad is None else bad.outcome
        if hasattr(bad, "wasxfail"):  # the tests themselves expect it to fail
            text = f"E  expected to fail by the tests: {bad.wasxfail}"
        where.write_text(json.dumps({"outcome": outcome, "text": text, "reached": bool(REACHED)}))
    except BaseException:
        where.write_text(json.dumps({"outcome": "failed", "text": traceback.format_exc()}))
    finally:
        os._exit(0)


def _first_cause(report: Any) -> str:
    """The text of a report, last error first and at most some kilobytes of it."""
    text = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext)
    log = "\n".join(content for title, content in report.sections if "log" in title or "stdout" in title)
    found = re.findall(r"(TRN\d{3}: [^\n]*(?:\n  [^\n]*){0,6})", text)
    return ("\n".join(found[-1:]) + "\n" + text)[-200_000:] + "\n" + log[-4000:]
