# SPDX-License-Identifier: Apache-2.0
"""A run: what a training script did, gathered while it runs, and kept in a folder.

    runs/<name>/summary.json              see `summary`; there from the start, renewed while the run goes on
    runs/<name>/executables/<key>.json    what each executable was compiled from and for
    runs/<name>/timelines/<key>.trntime   when each of its instructions runs
    runs/<name>/details/<key>.json        what each of them is, see `details`

Every file is written whole or not at all. A run that is interrupted or killed leaves a summary that says so.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trnlab
from trnlab import policy, profile, timeline
from trnlab.errors import RunError, TrnlabError, UsageError
from trnlab.files import way_out, why, write_atomic
from trnlab.profile import data
from trnlab.runtime import status_file
from trnlab.runtime.analysis import lanes, performance, steps, summary
from trnlab.runtime.analysis.compiled import policy_fields
from trnlab.runtime.analysis.details import details
from trnlab.runtime.analysis.performance import NOTHING, ExecutedSteps, Fullest, StepCalls
from trnlab.runtime.fault_injection import FaultInjector
from trnlab.storage.plain_files import is_plain, removed

if TYPE_CHECKING:
    from trnlab.runtime.communication import UncapturedCollective
    from trnlab.runtime.executable import Executable
    from trnlab.runtime.session import Session

SAVE_EVERY_S = 5.0
LONGEST_SEQUENCE = 1_000_000
LONGEST_STEP = 10_000  # executions of a step whose order is kept


class RunRecord:
    """Collects what happens; `finish` writes the last summary. Raises RunError when the folder cannot be written."""

    def __init__(self, folder: Path, session: Session, script: Path, arguments: Sequence[str] = ()) -> None:
        self.folder, self.session, self.script, self.arguments = folder, session, script, list(arguments)
        self.losses: list[float] = []
        self.reference_losses: list[float] = []
        self.wall_s: list[float] = []
        self.executables: dict[str, Executable] = {}
        self.details: dict[str, dict[str, Any]] = {}  # of the executables, once the run is over
        self.calls: Counter[str] = Counter()
        self._in_step: Counter[str] = Counter()
        self._sequence: list[str] = []  # of all executions, as long as nobody says where steps end
        self._updates: list[int] = []  # how many of them were done at each step of an optimizer
        self._patterns: Counter[StepCalls] = Counter()
        self.step_patterns: list[StepCalls] = []  # of each step, in their order
        self._tokens: Counter[int] = Counter()
        self._fullest = NOTHING  # of the step so far
        self.fullest: dict[StepCalls, Fullest] = {}  # of the last step of each pattern
        self._beside: list[int] = []  # bytes, of each execution in `_sequence`
        self._outside: dict[
            StepCalls, list[UncapturedCollective]
        ] = {}  # what the last step of a pattern asked of the network
        self._order: list[str | UncapturedCollective] = []  # what the step has done so far, in order
        self._orders: dict[StepCalls, list[str | UncapturedCollective]] = {}  # the same of the last step of a pattern
        self._heard: list[
            tuple[int, UncapturedCollective]
        ] = []  # since the last step, each behind so many executions
        self.failure = ""  # what the script raised
        self.ranks = 0  # that the script started, of which each left its own in this folder
        self.input_s = 0.0  # that the script waited for its data
        self._read: list[Callable[[float | None], dict[str, Any]]] = []  # of each data set, what reading it came to
        self._started = datetime.now(UTC)
        self._clock = self._step_clock = self._saved = time.perf_counter()
        self.fault_injector = FaultInjector(session.rehearsed, session.instances)
        self.beacon = status_file.StatusFile(self._tell)
        self.beacon.renew(now=True)
        again = is_plain(folder / data.FILE)
        self.save("running")
        for name in (profile.REPORT, profile.TRACE) if again else ():  # of an earlier run in the same folder
            removed(folder / name)

    # -- what the run is told -----------------------------------------------------------------------------------
    def begins(self) -> None:
        """An executable is about to run. Raises what is rehearsed for this step, see `FaultInjector.begin`."""
        counters = self.session.counters
        done = counters.resumed + max(len(self.losses), len(self._updates))
        self.fault_injector.begin(done + 1, counters.resumed)

    def executed(self, executable: Executable, beside: int = 0) -> None:
        """`executable` ran once, with so many bytes of HBM in use beside its own."""
        self._listen()
        self.executables[executable.key] = executable
        self.calls[executable.key] += 1
        self._in_step[executable.key] += 1
        self._fullest = max(self._fullest, Fullest.of(executable, beside))
        if self.session.counters.fabric is not None and len(self._order) < LONGEST_STEP:
            self._order.append(executable.key)
        if not self.losses and len(self._sequence) < LONGEST_SEQUENCE:
            self._sequence.append(executable.key)
            self._beside.append(beside)
        self.beacon.renew()

    def updated(self) -> None:
        """An optimizer made a step, outside of compiled programs."""
        if not self.losses and len(self._sequence) < LONGEST_SEQUENCE:
            self._updates.append(len(self._sequence))

    def waited(self, seconds: float) -> None:
        """The script waited so long for its data."""
        self.input_s += seconds

    def reads(self, record: Callable[[float | None], dict[str, Any]]) -> None:
        """A data set is read; `record` says what that came to so far, for the summary; given a step's simulated
        seconds, also what it costs."""
        self._read.append(record)

    def step(self, loss: float, tokens: int = 0) -> None:
        """A training step is over: its loss, and how many tokens (or samples) it learned from."""
        now = time.perf_counter()
        self.losses.append(_number(loss, "the loss"))
        tokens = int(_number(tokens, "the number of tokens"))
        self.wall_s.append(now - self._step_clock)
        self._step_clock = now
        self.step_patterns.append(tuple(self._in_step.items()))
        self._listen()
        self._outside[self.step_patterns[-1]] = [each for _, each in self._heard]
        self.fullest[self.step_patterns[-1]], self._fullest = self._fullest, NOTHING
        self._heard.clear()
        self._orders[self.step_patterns[-1]], self._order = self._order, []
        if self._in_step:
            self._patterns[self.step_patterns[-1]] += 1
            self._in_step.clear()
        self._tokens[tokens] += 1
        self.session.counters.steps += 1
        if now - self._saved > SAVE_EVERY_S:
            self._save_on_the_way()

    def _save_on_the_way(self) -> None:
        """A training goes on where its summary can no longer be written; the end of the run says so, then."""
        try:
            self.save("running")
        except RunError:
            self._saved = math.inf

    def failed(self, error: BaseException) -> None:
        """The script raised this and did not catch it."""
        ours = error if isinstance(error, TrnlabError) else None
        self.failure = self.failure or (f"{ours.code}: {ours.what}" if ours else f"{type(error).__name__}: {error}")
        if self.fault_injector.ecc:
            self.beacon.ecc["mem_ecc_uncorrected"] = self.fault_injector.ecc
        self.beacon.failed(error)

    def reference(self, losses: Sequence[float]) -> None:
        """The losses of the same script on the host's processor in float32."""
        self.reference_losses = [_number(loss, "a loss") for loss in losses]

    # -- what the run leaves ------------------------------------------------------------------------------------
    def finish(self, status: str) -> dict[str, Any]:
        """Write everything, the summary last, and return it. status: "complete", "interrupted" or "failed"."""
        self._find_steps()
        for key, executable in self.executables.items():
            about = {**executable.metadata, "cache": executable.cache, "calls": self.calls[key]}
            self._write(f"executables/{key}.json", json.dumps(about, indent=2).encode())
            self._guarded(f"timelines/{key}.trntime", partial(timeline.save, executable.timeline))
            self.details[key] = details(executable.laid, executable.timeline, executable.chip)
            self._write(f"details/{key}.json", json.dumps(self.details[key], separators=(",", ":")).encode())
        self._lane()
        self.beacon.end()
        return self.save(status, timed=True)

    def _tell(self, timed: bool) -> dict[str, Any]:
        """What `trnlab monitor` may see."""
        about = {
            "folder": str(self.folder.resolve()),
            "script": str(self.script),
            "started": self._started.timestamp(),
            "steps": self.session.counters.steps or len(self._updates),
            "loss": self.losses[-1:] or None,
            "input_s": self.input_s,
        }
        return about | status_file.record(self.session, self.executables, self.calls, timed=timed)

    def _lane(self) -> None:
        """Lane of a rank of several: its typical step, for the picture of all."""
        fabric, order = self.session.counters.fabric, self._orders.get(self.step_calls)
        if fabric is not None and order:
            written = lanes.slowed(lanes.items(order, self.executables, fabric.rank), self.fault_injector.slow)
            self._write(lanes.FILE, json.dumps(written, separators=(",", ":")).encode())

    def save(self, status: str, *, timed: bool = False) -> dict[str, Any]:
        """Write the summary as it stands; `timed` adds what takes a simulation of time."""
        record = self.record(status)
        if timed:
            record |= performance.summarise(
                ExecutedSteps(
                    self.session,
                    self.executables,
                    self.details,
                    self.calls,
                    self.step_calls,
                    self.step_patterns,
                    self.tokens_per_step,
                    self._outside,
                    self.fullest.get(self.step_calls, self._fullest),
                )
            )
        if self._read and "step_time_s" in record:
            record["data"] = [read(record["step_time_s"]) for read in self._read]
        self._write(data.FILE, summary.to_json(record))
        self._saved = time.perf_counter()
        return record

    def record(self, status: str) -> dict[str, Any]:
        """The part of the summary that needs no simulation of time."""
        session, counters = self.session, self.session.counters
        network = {"network": counters.fabric.record()} if counters.fabric is not None else {}
        failure: dict[str, Any] = {"failure": self.failure} if self.failure else {}
        failure |= {"input_s": self.input_s} if self.input_s else {}
        failure |= {"data": [read(None) for read in self._read]} if self._read else {}
        failure |= {"resumed": counters.resumed} if counters.resumed else {}
        return (
            network
            | failure
            | {
                "schema": data.SCHEMA,
                "version": data.VERSION,
                "trnlab": trnlab.__version__,
                "name": self.folder.name,
                "status": status,
                "complete": status == "complete",
                "script": str(self.script),
                "arguments": self.arguments,
                "started": self._started.isoformat(timespec="seconds"),
                "wall_s": time.perf_counter() - self._clock,
                "step_wall_s": self.wall_s,
                "target": session.target.name,
                "chip": session.chip.name,
                "precision": session.precision,
                "products": session.counters.products,
                "policy": policy_fields(policy.chosen(session.chip.name)),
                "stochastic_rounding": session.rounds_stochastically,
                "seed": session.seed,
                "steps": counters.steps or len(self.step_patterns),
                "steps_found_by": self._found_by,
                "loss": self.losses,
                "reference_loss": self.reference_losses,
                "reference_loss_gap": self._gap(),
                "instructions": counters.instructions,
                "host_fallback_ops": counters.host.totals(),
                "host_fallbacks": counters.host.by_name(),
                "compile": self._compile(),
            }
        )

    @property
    def step_calls(self) -> StepCalls:
        """The executables of a typical step in the order of their first use, and how often it runs each.

        Those of the whole run when no step was reported; kernels that a script calls by themselves, once each.
        """
        if self._patterns:
            return self._patterns.most_common(1)[0][0]
        alone = all(e.is_kernel for e in self.executables.values())
        return tuple((key, 1 if alone else count) for key, count in self.calls.items())

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a typical step; 0 when the script does not say."""
        return self._tokens.most_common(1)[0][0] if self._tokens else 0

    @property
    def _found_by(self) -> str | None:
        """How it is known where a step ends: the script reports it, its optimizer, or what it runs repeats."""
        if self.losses:
            return "report"
        if self._updates and self._patterns:
            return "optimizer"
        return "repetition" if self._patterns else None

    def _find_steps(self) -> None:
        """Where the script reports no steps (its loop is around `torch.compile`), find them in what it ran."""
        if self.losses or self._patterns or all(e.is_kernel for e in self.executables.values()):
            return
        ends = self._updates or steps.ends_of_repetition(self._sequence)
        self._listen()
        for first, last in itertools.pairwise((0, *ends)):
            self.step_patterns.append(tuple(Counter(self._sequence[first:last]).items()))
            ran = zip(self._sequence[first:last], self._beside[first:last])
            full = (Fullest.of(self.executables[key], beside) for key, beside in ran)
            self.fullest[self.step_patterns[-1]] = max(full, default=NOTHING)
            heard = [(place, each) for place, each in self._heard if first < place <= last]
            self._outside[self.step_patterns[-1]] = [each for _, each in heard]
            placed: list[tuple[float, str | UncapturedCollective]] = [*enumerate(self._sequence[first:last], first)]
            placed += [(place - 0.5, each) for place, each in heard]
            self._orders[self.step_patterns[-1]] = [each for _, each in sorted(placed, key=lambda pair: pair[0])]
        self._patterns.update(pattern for pattern in self.step_patterns if pattern)

    def _listen(self) -> None:
        """Note what was done together since the last execution; what came before the first one is no step's."""
        fabric = self.session.counters.fabric
        if fabric is not None:
            heard = fabric.take()
            self._order += heard if self.calls else []
            self._heard += [(len(self._sequence), each) for each in heard] if self.calls else []

    def _gap(self) -> float | None:
        pairs = list(zip(self.losses, self.reference_losses))
        return max(abs(a - b) for a, b in pairs) if pairs else None

    def _compile(self) -> dict[str, Any]:
        kinds = {e.cache for e in self.session.executables.values()}
        cache = next((kind for kind in ("miss", "off", "hit") if kind in kinds), None)
        used = self.session.executables.values()
        store = {"store": self.session.cache.record()} if self.session.cache is not None else {}
        return {"seconds": sum(e.seconds for e in used), "cache": cache, "executables": len(used), **store}

    def _write(self, name: str, content: bytes) -> None:
        self._guarded(name, lambda path: write_atomic(path, content))

    def _guarded(self, name: str, write: Callable[[Path], None]) -> None:
        """Let `write` make the file `name` of the folder; an OSError becomes a RunError."""
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
        except OSError as error:
            raise RunError(
                f"{str(path)!r} cannot be written: {why(error)}",
                code="TRN813",
                remedy=way_out(error, "name another folder with --out"),
            ) from error


def _number(value: object, what: str) -> float:
    """A number that a script reports. Raises UsageError for anything else."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UsageError(
            f"{what} of a step is not a number",
            code="TRN154",
            got=f"{type(value).__name__} {str(value)[:40]!r}",
            remedy="report loss.item(), and how many tokens the step learned from",
        ) from error


def new_folder(parent: Path, stem: str) -> Path:
    """Make and return the first free `parent/stem-<n>`. Raises RunError when it cannot be made."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for n in itertools.count(1):
            try:
                (parent / f"{stem}-{n}").mkdir()
            except FileExistsError:
                continue
            return parent / f"{stem}-{n}"
    except OSError as error:
        raise RunError(
            f"no folder for the run can be made in {str(parent)!r}: {why(error)}",
            code="TRN813",
            remedy=way_out(error, "name a folder with --out"),
        ) from error
    raise AssertionError("unreachable")
