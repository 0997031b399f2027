# SPDX-License-Identifier: Apache-2.0
"""A bench of several candidates: recorded in contained processes, judged in parallel, once by content, ranked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trnlab import policy
from trnlab.bench import contained, judging
from trnlab.bench.candidate import KernelCandidate
from trnlab.bench.judging import REFUSED, RIGHT, TIMED, Judgement, ProblemSpec
from trnlab.bench.recording import CandidateRecording, RecordingJob, stand_in
from trnlab.errors import RunError, TrnlabError
from trnlab.nki import portable
from trnlab.nki.portable import PortableKernel
from trnlab.nki.target import default_chip
from trnlab.program.digest import routine_digest
from trnlab.view.request import ResourceLimits

TIE = 0.05  # relative: times nearer than that are not told apart
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LadderEntry:
    """A candidate and its judgement. same_as: an earlier one with the same instructions, judged for both."""

    candidate: KernelCandidate
    judgement: Judgement
    same_as: str = ""


@dataclass(frozen=True)
class KernelBench:
    """How candidates are judged."""

    spec: ProblemSpec
    target: str = ""  # "" for that of kernels
    grid: int = 0
    flags: str = ""
    band: bool = True  # time them under what the evidence leaves open, too
    limits: ResourceLimits = contained.LIMITS  # of the processes that run their code

    def job(self, candidate: KernelCandidate, arguments: Sequence[Any]) -> RecordingJob:
        """What is recorded of a candidate; it is told the shapes of its arguments, not what is in them."""
        names = (
            [str(p) for p in policy.alternatives(policy.chosen(default_chip().name)).values()] if self.band else []
        )
        given = tuple(stand_in(a) if isinstance(a, np.ndarray) else a for a in arguments)
        path, words = str(candidate.path.resolve()), dict(candidate.constants)
        return RecordingJob(
            path, candidate.function, given, words, self.target, self.grid, self.flags, ("", *dict.fromkeys(names))
        )

    def arguments(self) -> Sequence[Any]:
        """What kernels are given, as in the first usual case."""
        return judging.arguments_of(self.spec)


def run(
    bench: KernelBench, candidates: Sequence[KernelCandidate], executor: Executor | None, progress: Progress
) -> list[LadderEntry]:
    """Judge candidates; the ladder, best first. executor: None for this process alone."""
    arguments = bench.arguments()
    jobs = [bench.job(candidate, arguments) for candidate in candidates]
    recorded = list(_recorded(bench, jobs, candidates, executor, progress))
    read = [_read(each) for each in recorded]
    kernels = {n: kernel for n, kernel in enumerate(read) if isinstance(kernel, PortableKernel)}
    spec = replace(bench.spec, formats=judging.formats_of(kernels.values(), arguments))
    judging.prepared(spec)  # says at once what is wrong with it, and is inherited by processes that are copied
    keys = {number: _key(kernel) for number, kernel in kernels.items()}
    first = {key: number for number, key in reversed(keys.items())}
    work = {n: (recorded[n].contents, jobs[n], spec) for n in sorted(first.values())}
    judged = _judged(work, candidates, executor, progress)
    entries = []
    for number, (candidate, each) in enumerate(zip(candidates, read)):
        if isinstance(each, TrnlabError):
            entries.append(LadderEntry(candidate, Judgement(REFUSED, error=each)))
            continue
        original = first[keys[number]]
        same = "" if original == number else candidates[original].name
        entries.append(LadderEntry(candidate, judged[original], same))
    return ranked(entries)


def _read(recording: CandidateRecording) -> PortableKernel | TrnlabError:
    """The kernel of a recording, verified; or why there is none, which is the candidate's own fault."""
    if recording.error is not None:
        return recording.error
    try:
        return portable.loads(recording.contents[""], default_chip())
    except TrnlabError as error:
        return error


def ranked(entries: Sequence[LadderEntry]) -> list[LadderEntry]:
    """Right ones by their time, then those that were only timed, then wrong ones, then what was refused."""
    order = {RIGHT: 0, TIMED: 1, judging.WRONG: 2, REFUSED: 3}
    return sorted(entries, key=lambda e: (order[e.judgement.verdict], e.judgement.total))


def told_apart(a: Judgement, b: Judgement) -> bool:
    """Whether a is faster than b whatever the evidence leaves open: under each policy that is not excluded, by more
    than what times are not told apart by."""
    both = [(a.total, b.total), *((a.others[name], b.others[name]) for name in a.others if name in b.others)]
    return all(one < other for one, other in both) and b.total >= a.total * (1 + TIE)


def _key(kernel: PortableKernel) -> str:
    """What tells one program from another; names and lines of the source are not in it."""
    same = [repr(kernel.trace.results), *(routine_digest(r) for r in kernel.trace.program.routines)]
    return hashlib.sha256("".join(same).encode()).hexdigest()


def _recorded(
    bench: KernelBench,
    jobs: Sequence[RecordingJob],
    candidates: Sequence[KernelCandidate],
    executor: Executor | None,
    progress: Progress,
) -> Iterator[CandidateRecording]:
    """Each in a contained process of its own."""
    words = [([job], bench.limits) for job in jobs]
    for number, found in enumerate(_mapped(contained.recordings, words, executor)):
        progress(f"{candidates[number].name} is recorded", number + 1, len(jobs))
        yield CandidateRecording(error=found) if isinstance(found, RunError) else found[0]


def _judged(
    work: Mapping[int, tuple[Any, ...]],
    candidates: Sequence[KernelCandidate],
    executor: Executor | None,
    progress: Progress,
) -> dict[int, Judgement]:
    found: dict[int, Judgement] = {}
    for number, outcome in zip(work, _mapped(judging.judge, list(work.values()), executor)):
        failed = isinstance(outcome, RunError)
        found[number] = Judgement(REFUSED, error=outcome) if failed else outcome
        progress(f"{candidates[number].name}: {found[number].verdict}", len(found), len(work))
    return found


def _mapped(
    function: Callable[..., Any], words: Sequence[tuple[Any, ...]], executor: Executor | None
) -> Iterator[Any]:
    """The results in order; RunError in the place of one whose process ended."""
    if executor is None:
        yield from (function(*each) for each in words)
        return
    futures = [executor.submit(function, *each) for each in words]
    for future in futures:
        try:
            yield future.result()
        except BrokenExecutor:
            yield lost()


def lost() -> RunError:
    """What is told of a candidate whose process, or whose machine, ended."""
    return RunError(
        "the process that judged a candidate ended",
        code="TRN845",
        remedy="judge it by itself; whether memory was short, `dmesg` says",
    )
