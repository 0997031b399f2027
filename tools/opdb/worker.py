# SPDX-License-Identifier: Apache-2.0
"""Runs operators one after another: jobs as lines of JSON in, records as lines of JSON out.

A worker is a process of its own, so that an operator that takes the process down, or never returns, costs only
itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from tools.opdb.compare import all_differences, has_signs, in_parts, tolerances, ulps
from tools.opdb.engines import Captured, Results, Trial, eager
from tools.opdb.order import by_what_is_there, has_equals
from tools.opdb.samples import (
    DTYPES,
    LEFT_EMPTY,
    REFUSED_DTYPES,
    Sample,
    database,
    gradients,
    is_random,
    leaves_of,
    samples,
    weights_for,
)
from tools.opdb.verdicts import FAILED, PASSED, OutOfTime, Record, Verdict, of_error
from trnlab import chips
from trnlab.frontends.common import engine
from trnlab.runtime import session

_NEIGHBOURS = 6


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime after so many seconds of processor time, where the system can; else the parent ends us."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def over(*_: Any) -> None:
        raise OutOfTime

    signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class Expected:
    """What PyTorch on the CPU gives for one sample."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        leaves = leaves_of(sample, "cpu")
        torch.manual_seed(1)
        outputs = sample.call(leaves, "cpu")
        self.weights = weights_for(outputs)
        self.forward = [o.detach().clone() if isinstance(o, torch.Tensor) else o for o in outputs]
        self.backward: list[Any] | None = None
        if self.weights:
            with contextlib.suppress(RuntimeError, NotImplementedError):  # no derivative on the CPU: nothing to test
                self.backward = gradients(outputs, leaves, self.weights)
        torch.manual_seed(2)
        again = sample.call(leaves_of(sample, "cpu"), "cpu")
        self.random = is_random(sample.op) or any(map(_differ, again, self.forward))
        self._exact: list[dict[str, list[Any]]] | None = None

    def has(self, dtype: torch.dtype) -> bool:
        """Whether the dtype occurs among operands or results: makers of integers take no float."""
        tensors = [*leaves_of(self.sample, "cpu"), *self.forward]
        return any(isinstance(x, torch.Tensor) and x.dtype is dtype for x in tensors)

    def exact(self, part: str, index: int) -> list[torch.Tensor]:
        """Result `index` from float64 inputs, then the same from inputs one unit in the last place away.

        Empty where PyTorch cannot compute it.
        """
        if self._exact is None:
            self._exact = [self._in_float64(trial) for trial in range(_NEIGHBOURS + 1)]
        found = [results.get(part, [])[index : index + 1] for results in self._exact]
        return [r[0] for r in found if r and isinstance(r[0], torch.Tensor)] if found[0] else []

    def _in_float64(self, trial: int) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        leaves = leaves_of(self.sample, "cpu", torch.float64)
        with contextlib.suppress(Exception):  # the sample fixes a dtype, or the operator has none for float64
            with torch.no_grad():
                for x in map(in_parts, leaves):
                    x.mul_(self._nudge(x, trial))
            outputs = self.sample.call(leaves, "cpu")
            found["forward"] = [o.detach() if isinstance(o, torch.Tensor) else o for o in outputs]
            found["backward"] = gradients(outputs, leaves, [self._nudged(w, trial) for w in self.weights])
        return found

    def _nudged(self, x: torch.Tensor, trial: int) -> torch.Tensor:
        moved = in_parts(x) * self._nudge(in_parts(x), trial)
        return torch.view_as_complex(moved) if x.is_complex() else moved

    def _nudge(self, x: torch.Tensor, trial: int) -> torch.Tensor:
        """Factors that move each element to a neighbour in its format; ones in trial 0, and for what is no float."""
        kind = self.sample.dtype
        if trial == 0 or not (x.is_floating_point() and (kind.is_floating_point or kind.is_complex)):
            return torch.ones((), dtype=torch.float64 if x.is_floating_point() else x.dtype)
        signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(trial))
        return 1 + signs.double().mul(2).sub(1) * torch.finfo(kind).eps

    def judge(self, part: str, results: Results, tolerance: tuple[float, float]) -> Verdict:
        """Compare, shapes and dtypes alone where the operator is random."""
        if isinstance(results, Verdict):
            return results
        expected = self.forward if part == "forward" else self.backward
        assert expected is not None
        if self.random:
            results, expected = _shapes(results), _shapes(expected)
        if part == "backward" and has_equals(self.sample):
            return Verdict(PASSED)
        if len(results) == len(expected) and part == "forward" and not self.random:
            results, expected = (by_what_is_there(self.sample, r) for r in (results, expected))
        if len(results) == len(expected):
            empty = LEFT_EMPTY.get(self.sample.op.name, ()) if part == "forward" else ()
            results = [
                e if i in empty and e.numel() == 0 else _as_on_cpu(r, e)
                for i, (r, e) in enumerate(zip(results, expected))
            ]
        exact = [functools.partial(self.exact, part, i) for i in range(len(expected))]
        signs = part == "forward" and has_signs(self.sample.op.name)
        wrong = all_differences(results, expected, None if self.random else exact, tolerance, signs)
        if wrong is not None:
            return Verdict(FAILED, "value", wrong)
        return Verdict(PASSED, ulp=0 if self.random else max(map(ulps, results, expected), default=0))


def _as_on_cpu(result: Any, expected: Any) -> Any:
    """Statistics that PyTorch keeps in float32 on devices and in the data's format on the CPU, as on the CPU."""
    if not (isinstance(result, torch.Tensor) and isinstance(expected, torch.Tensor)):
        return result
    narrower = result.dtype is torch.float32 and expected.dtype in (torch.bfloat16, torch.float16)
    return result.to(expected.dtype) if narrower and result.shape == expected.shape else result


def _differ(x: Any, y: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return x.shape != y.shape or not torch.equal(torch.nan_to_num(x.detach()), torch.nan_to_num(y))
    return bool(x != y) and x == x


def _shapes(values: Any) -> list[Any]:
    return [(tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else type(v) for v in values]


def run(job: dict[str, Any]) -> list[Record]:
    """All records of one operator and dtype."""
    op, dtype = database()[job["op"]], DTYPES[job["dtype"]]
    records: list[Record] = []
    index, expected = -1, []

    def add(i: int, part: str, mode: str, verdict: Verdict) -> None:
        records.append(Record(job["op"], job["dtype"], i, str(expected[i].sample), part, mode, verdict))

    with time_limit(job["seconds"]):
        for index, sample in enumerate(samples(op, dtype, job["samples"], job["reference"])):  # noqa: B007
            with contextlib.suppress(Exception):  # what PyTorch itself refuses on the CPU is no sample
                expected.append(Expected(sample))
        trials = [Trial(e.sample, e.weights, e.backward is not None) for e in expected]
        tolerance = tolerances(op, dtype)
        if "eager" in job["modes"]:
            for i, trial in enumerate(trials):
                for part, results in eager(trial).items():
                    add(i, part, "eager", expected[i].judge(part, results, tolerance))
        engines = {m: _ENGINES[m]() for m in job["modes"] if m in _ENGINES}
        if engines and trials:
            for mode, i, part, results in _captured(trials, engines):
                verdict = expected[i].judge(part, results, tolerance)
                add(i, part, mode, _expected_refusal(verdict, dtype) if expected[i].has(dtype) else verdict)
    return records


def _captured(trials: list[Trial], engines: dict[str, Any]) -> Iterator[tuple[str, int, str, Results]]:
    """Results of all samples; each captured by itself when they cannot be captured together."""
    try:
        captured = Captured(trials)
    except OutOfTime:
        raise
    except Exception as error:
        for i, trial in enumerate(trials):
            if len(trials) == 1:
                yield from ((mode, 0, "forward", of_error(error)) for mode in engines)
            else:
                yield from ((mode, i, part, r) for mode, _, part, r in _captured([trial], engines))
        return
    for mode, pairs in captured.run(engines).items():
        for item, results in pairs:
            yield mode, item.sample, item.part, results


def _expected_refusal(verdict: Verdict, dtype: torch.dtype) -> Verdict:
    if dtype in REFUSED_DTYPES and (verdict.kind == PASSED or verdict.code == "value"):
        return Verdict(FAILED, "accepted", f"a compiled program took {dtype} without a word")
    return verdict


_ENGINES = {"compiled": engine.DeviceEngine, "interpreter": engine.InterpreterEngine}


def serve(chip: str) -> None:
    """Answer jobs until there are no more."""
    neuron_target = session.Session(chips.target(chip), "fp32")
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an operator prints is not an answer
    with session.activate(neuron_target):
        database()
        out.write("ready\n")
        out.flush()
        for line in sys.stdin:
            job = json.loads(line)
            try:
                records = run(job)
            except OutOfTime as error:
                records = [
                    Record(job["op"], job["dtype"], 0, "", "forward", m, of_error(error)) for m in job["modes"]
                ]
            except Exception as error:
                verdict = Verdict(FAILED, "crash", f"the tool: {of_error(error).reason}")
                records = [Record(job["op"], job["dtype"], 0, "", "forward", m, verdict) for m in job["modes"]]
            neuron_target.executables.clear()
            out.write(json.dumps([r.to_json() for r in records]) + "\n")
            out.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
