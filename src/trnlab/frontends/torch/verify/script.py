# SPDX-License-Identifier: Apache-2.0
"""Run a script several times in this process, each time from the same random state, under different engines."""

from __future__ import annotations

import io
import random
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from trnlab.errors import UsageError
from trnlab.frontends.common.engine import use
from trnlab.frontends.torch import recording
from trnlab.frontends.torch.autoload import script_starts
from trnlab.frontends.torch.findings import provenance
from trnlab.frontends.torch.verify.against import BUDGET, ScriptComparison, ScriptRecording
from trnlab.frontends.torch.verify.captured import LayerResults, first_difference
from trnlab.frontends.torch.verify.chip import ChipEngine
from trnlab.frontends.torch.verify.host import HostEngine, Perturbed, Replayed, Widened, eager
from trnlab.frontends.torch.verify.steps import StepCounter, StepLimitReached
from trnlab.precision import MODES
from trnlab.runtime import session as sessions
from trnlab.runtime.script import Script, failure
from trnlab.runtime.session import Session, activate
from trnlab.verify.result import OpResult, Verdict

RUNS = 5  # of the reference with rounding's errors thrown in
FLOAT64 = "float64"


@dataclass
class VerifyRequest:
    """What to verify."""

    script: Script
    steps: int = 3
    reference: str = "fp32"  # "fp32" or "float64"
    other: Script | None = None  # a script to compare with on the host, not the chip
    runs: int = RUNS


def verify(wanted: VerifyRequest, session: Session) -> Verdict:
    """Run the script on the chip and on the host and compare. Raises UsageError for scripts that cannot be."""
    started = time.perf_counter()
    verdict = Verdict(str(wanted.script.path), session.target.name, session.precision, wanted.reference, wanted.steps)
    with activate(session):
        again = RepeatedScript(wanted.script)
        if wanted.other is not None:
            _side_by_side(wanted, again, verdict)
            verdict.seconds = time.perf_counter() - started
            return verdict
        chip = again.on_chip(verdict, wanted.steps)
        verdict.curves.chip, verdict.steps = chip.steps.losses, len(chip.steps.losses)
        format = MODES[session.precision]
        verdict.curves.reference = again.reference(chip, verdict)
        for seed in range(1, wanted.runs + 1):
            verdict.curves.perturbed.append(again.reference(chip, verdict, [Perturbed(format, seed)]))
        step = verdict.curves.outside()
        if step is not None and verdict.first is None:
            verdict.first = again.captured(chip, verdict, step)
    verdict.seconds = time.perf_counter() - started
    return verdict


def _side_by_side(wanted: VerifyRequest, again: RepeatedScript, verdict: Verdict) -> None:
    """Fill in the verdict about two scripts."""
    assert wanted.other is not None
    verdict.against, verdict.reference = str(wanted.other.path), FLOAT64
    this, other = ScriptRecording(StepCounter(wanted.steps)), ScriptRecording(StepCounter(wanted.steps))
    for kept, script in ((this, again), (other, RepeatedScript(wanted.other))):
        script.recorded(kept)
    found = ScriptComparison(this, other)
    verdict.add(list(found.results()))
    curves, verdict.steps = verdict.curves, len(this.steps.losses)
    curves.chip, curves.reference = this.steps.losses, other.steps.losses[: verdict.steps]
    for seed in range(1, wanted.runs + 1):
        steps = StepCounter(verdict.steps)
        RepeatedScript(wanted.other).on_host(steps, [Perturbed("float32", seed)])
        curves.perturbed.append(steps.losses)
    if this.full or other.full:
        verdict.notes.append(f"results beyond {BUDGET >> 30} GiB were not kept, and not compared")
    if missing := found.unmatched():
        verdict.notes.append(
            f"not in {verdict.against}: {', '.join(missing[:6])}{' ...' if len(missing) > 6 else ''}"
        )


class RepeatedScript:
    """A script that is run again and again from one state of the random numbers."""

    def __init__(self, script: Script) -> None:
        self.script, self._random = script, _rng_state()

    def on_chip(self, verdict: Verdict, limit: int) -> ChipEngine:
        """Run on the chip; what is compared goes into `verdict`."""
        steps = StepCounter(limit)
        engine = ChipEngine(verdict, steps)
        with provenance.kept(), use(engine), steps.watching():
            self._run()
        torch.compiler.reset()
        if not steps.losses:
            raise _no_step(self.script)
        if not verdict.compared:
            raise UsageError(
                f"nothing of {str(self.script.path)!r} ran on the chip",
                code="TRN162",
                remedy='move the model to device "neuron", and the batches',
            )
        return engine

    def reference(self, chip: ChipEngine, verdict: Verdict, modes: Sequence[Any] = ()) -> list[float]:
        """Losses of the steps that the chip made, on the host, with the chip's random numbers."""
        steps = StepCounter(len(chip.steps.losses))
        replayed = Replayed(chip.random, steps)
        widened = [Widened()] if verdict.reference == FLOAT64 else []
        self.on_host(steps, [*widened, replayed, *modes], chip.times)
        note = f"{replayed.missing} calls of dropout have no counterpart on the chip: the losses differ"
        if replayed.missing and note not in verdict.notes:
            verdict.notes.append(note)
        return steps.losses

    def captured(self, chip: ChipEngine, verdict: Verdict, step: int) -> OpResult | None:
        """Where in a step the chip computes something else than the script; the runs up to there are repeated."""
        engine = ChipEngine(replace(verdict, results=[], differing=[], skipped=[]), StepCounter(step), keep=step)
        with provenance.kept(), use(engine), engine.steps.watching(), _silent():
            self._run()
        recordings: list[ScriptRecording] = []
        for modes in ([], [Perturbed(MODES[sessions.current().precision], 1)]):
            recording = ScriptRecording(StepCounter(step))
            replayed = Replayed(chip.random, recording.steps)
            self.on_host(recording.steps, [replayed, *modes], chip.times, within=recording.running())
            recordings.append(recording)
        host, moved = recordings
        return first_difference(LayerResults(engine.layers), host, moved, step)

    def recorded(self, recording: ScriptRecording) -> None:
        """Run on the host in float64 and write down what is computed."""
        self.on_host(recording.steps, [Widened()], within=recording.running())
        if not recording.steps.losses:
            raise _no_step(self.script)

    def on_host(
        self,
        steps: StepCounter,
        modes: Sequence[Any],
        times: Sequence[float] = (),
        within: AbstractContextManager[None] | None = None,
    ) -> None:
        """Run on the host, under modes of PyTorch, the last of them nearest to the script."""
        with ExitStack() as stack:
            ways = use(HostEngine(steps, times)), recording.using("host"), eager(), steps.watching(), _silent()
            for entered in (*ways, *modes):
                stack.enter_context(entered)
            stack.enter_context(within or nullcontext())
            self._run()

    def _run(self) -> None:
        _set_rng_state(self._random)
        path, argv = list(sys.path), sys.argv
        sys.argv = [str(self.script.path), *self.script.arguments]
        sys.path.insert(0, str(self.script.file.parent))
        script_starts(str(self.script.file))
        try:
            runpy.run_path(str(self.script.path), run_name="__main__")
            recording.flush()
        except StepLimitReached:
            recording.forget()  # what the script has begun of the next step
        except SystemExit as exit:
            if exit.code not in (None, 0):
                raise UsageError(
                    f"{str(self.script.path)!r} ended with exit status {exit.code}",
                    code="TRN161",
                    remedy="run it with `trnlab run` first",
                ) from exit
        except Exception as error:
            raise failure(error, "TRN161") from error
        finally:
            sys.argv, sys.path[:] = argv, path


def _no_step(script: Script) -> UsageError:
    return UsageError(
        f"{str(script.path)!r} made no training step",
        code="TRN160",
        remedy='call loss.backward() of a model on device "neuron", or a step of compile_step',
    )


@contextmanager
def _silent() -> Iterator[None]:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def _rng_state() -> Any:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_rng_state(state: Any) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])
