# SPDX-License-Identifier: Apache-2.0
"""A kernel with parameters is searched for its fastest values: recorded and timed without a hardware's minute.

What does not fit or breaks a documented rule is refused while it is recorded, before anything is timed. The fastest
are held against the reference in the order of their times until one is right: what is fast and wrong is told so.
Where the space is small every point is tried; else Optuna's sampler proposes. What was tried is kept, so that a
search that was stopped goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trnlab.bench import contained, judging
from trnlab.bench.judging import Judgement, ProblemSpec
from trnlab.bench.ladder import lost
from trnlab.bench.recording import RecordingJob, on_target
from trnlab.bench.variants import SearchSpace
from trnlab.errors import TrnlabError, UsageError
from trnlab.nki import portable
from trnlab.nki.target import default_chip
from trnlab.storage.content import ContentStore
from trnlab.view.request import ResourceLimits

BATCH = 16  # variants that one contained process records
SMALL = 512  # points up to which all are tried
CHECKED = 8  # of the fastest, at most, that are held against the reference
Told = Callable[["Trial", int, int], None]


@dataclass(frozen=True)
class Trial:
    """One point. total: picoseconds, 0 where it was refused; then `refused` says why."""

    values: Mapping[str, Any]
    total: int = 0
    instructions: int = 0
    refused: str = ""
    lost: bool = False  # whoever tried it ended, which says nothing of the point


@dataclass(frozen=True)
class TuneTask:
    """What is searched. made_from: what tells its results from those of others: sources, target, model."""

    job: RecordingJob
    space: SearchSpace
    spec: ProblemSpec
    limits: ResourceLimits = contained.LIMITS
    made_from: Any = None


@dataclass
class TuneResult:
    """What was found. judged: the fastest by rank, with their judgements; best: the first that is right."""

    trials: list[Trial] = field(default_factory=list)
    judged: list[tuple[Trial, Judgement]] = field(default_factory=list)
    reused: int = 0

    @property
    def best(self) -> tuple[Trial, Judgement] | None:
        """The fastest that is right, or that was timed where nothing says what is right."""
        return next(((t, j) for t, j in self.judged if j.verdict in (judging.RIGHT, judging.TIMED)), None)

    def ranked(self) -> list[Trial]:
        """Those that run, the fastest first."""
        return sorted((t for t in self.trials if t.total), key=lambda t: t.total)


def trials_of(job: RecordingJob, points: Sequence[Mapping[str, Any]], limits: ResourceLimits) -> list[Trial]:
    """Record points in one contained process, and time them here."""
    found = contained.recordings([replace(job, changed=dict(point)) for point in points], limits)
    with on_target(job.target):
        chip = default_chip()
        trials = []
        for point, recording in zip(points, found):
            try:
                if recording.error is not None:
                    raise recording.error
                kernel = portable.loads(recording.contents[""], chip)
                total = kernel.timeline(chip).total
                trials.append(Trial(dict(point), total, kernel.trace.program.num_instructions))
            except TrnlabError as error:
                trials.append(Trial(dict(point), refused=f"{error.code}: {error.what}"))
    return trials


def run(task: TuneTask, budget: int, executor: Executor | None, kept: ContentStore, told: Told) -> TuneResult:
    """Search. budget: points that are tried at most. kept: where what was tried is."""
    known = _Known(task, kept)
    proposals = task.space if len(task.space) <= min(budget, SMALL) else None
    result = TuneResult()
    if proposals is not None:
        _try_all(task, list(proposals), executor, known, result, told)
    else:
        _sampled(task, budget, executor, known, result, told)
    result.reused = known.reused
    _check(task, result)
    return result


class _Known:
    """Trials by their values, on disk."""

    def __init__(self, task: TuneTask, store: ContentStore) -> None:
        self._task, self._store, self.reused = task, store, 0

    def file(self, values: Mapping[str, Any]) -> Path | None:
        return self._store.file(
            [self._task.made_from, sorted((k, repr(v)) for k, v in values.items())], prefix="tune-"
        )

    def find(self, values: Mapping[str, Any]) -> Trial | None:
        record = self._store.record(self.file(values))
        if record is None:
            return None
        self.reused += 1
        return Trial(dict(values), int(record["total"]), int(record["instructions"]), str(record["refused"]))

    def keep(self, trial: Trial) -> None:
        if trial.lost:
            return
        record = {"total": trial.total, "instructions": trial.instructions, "refused": trial.refused}
        self._store.write_record(self.file(trial.values), record)


def _try_all(
    task: TuneTask,
    points: Sequence[Mapping[str, Any]],
    executor: Executor | None,
    known: _Known,
    result: TuneResult,
    told: Told,
) -> None:
    tried = [known.find(point) for point in points]
    new = [point for point, trial in zip(points, tried) if trial is None]

    def take(trial: Trial) -> None:
        result.trials.append(trial)
        told(trial, len(result.trials), len(points))

    for old in filter(None, tried):
        take(old)
    for trial in _made(task, new, executor):
        known.keep(trial)
        take(trial)


def _made(task: TuneTask, points: Sequence[Mapping[str, Any]], executor: Executor | None) -> Iterator[Trial]:
    batches = [points[i : i + BATCH] for i in range(0, len(points), BATCH)]
    if executor is None:
        for batch in batches:
            yield from trials_of(task.job, batch, task.limits)
        return
    futures = [executor.submit(trials_of, task.job, batch, task.limits) for batch in batches]
    for batch, future in zip(batches, futures):
        try:
            yield from future.result()
        except BrokenExecutor:  # of these alone; they are tried again by the next search
            error = lost()
            yield from (Trial(dict(point), refused=f"{error.code}: {error.what}", lost=True) for point in batch)


def _sampled(
    task: TuneTask, budget: int, executor: Executor | None, known: _Known, result: TuneResult, told: Told
) -> None:
    """As Optuna proposes, a batch at a time; each point once."""
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=task.spec.seed % (1 << 32), constant_liar=True)
    )
    seen: dict[str, Trial] = {}
    stale = 0
    while len(seen) < budget and stale < 4 * budget:
        asked: list[tuple[Any, str, dict[str, Any]]] = []
        while len(asked) < BATCH and len(seen) + len(asked) < budget and stale < 4 * budget:
            trial = study.ask()
            point = {name: of[trial.suggest_int(name, 0, len(of) - 1)] for name, of in task.space.values.items()}
            key = json.dumps(point, sort_keys=True, default=repr)
            if key in seen:
                stale += 1
                study.tell(trial, _cost(seen[key]))
                continue
            asked.append((trial, key, point))
        new = {key: known.find(point) for _, key, point in asked}
        made = iter(_made(task, [point for _, key, point in asked if new[key] is None], executor))
        for trial, key, _ in asked:
            found = new[key]
            if found is None:
                found = next(made)
                known.keep(found)
            seen[key] = found
            study.tell(trial, _cost(found))
            result.trials.append(found)
            told(found, len(seen), budget)


def _cost(trial: Trial) -> float:
    """What the sampler minimizes: picoseconds; of what is refused more than any kernel takes."""
    return float(trial.total or 1e15)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UsageError(
            "the space is too large to try all of it, and Optuna is not installed",
            code="TRN847",
            limit=f"{SMALL} points without it",
            remedy="pip install 'trnlab[tune]', or give fewer values",
        ) from error
    return optuna


def _check(task: TuneTask, result: TuneResult) -> None:
    """Hold the fastest against the reference until one is right."""
    for trial in _distinct(result.ranked())[:CHECKED]:
        job = replace(task.job, changed=dict(trial.values))
        (recording,) = contained.recordings([job], task.limits)
        if recording.error is not None:
            continue
        spec = task.spec
        if spec.reference is not None:
            arguments = [a for a in job.arguments if hasattr(a, "dtype")]
            kernel = portable.loads(recording.contents[""], default_chip())
            spec = replace(spec, formats=judging.formats_of([kernel], arguments))
        judgement = judging.judge(recording.contents, job, spec)
        result.judged.append((trial, judgement))
        if judgement.verdict in (judging.RIGHT, judging.TIMED):
            return


def _distinct(trials: Iterable[Trial]) -> list[Trial]:
    """One of those that take exactly as long with as many instructions: most often they are the same program."""
    found: dict[tuple[int, int], Trial] = {}
    for trial in trials:
        found.setdefault((trial.total, trial.instructions), trial)
    return list(found.values())
