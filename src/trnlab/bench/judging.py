# SPDX-License-Identifier: Apache-2.0
"""A recorded candidate is executed on the inputs of each case, held against what is right, and timed."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trnlab import policy
from trnlab.bench.contained import LIMITS, called, recordings
from trnlab.bench.hostile import is_float
from trnlab.bench.problem import Case, Problem, problem
from trnlab.bench.recording import RecordingJob, on_target
from trnlab.bench.tolerance import Exact, comparable, exact, narrowest
from trnlab.chips.spec import Chip
from trnlab.errors import TrnlabError, UsageError
from trnlab.nki import portable
from trnlab.nki.target import default_chip
from trnlab.nki.tracing.arrays import to_host
from trnlab.runtime.analysis.counters import counters
from trnlab.verify.bounds import roundoff

RIGHT, WRONG, REFUSED, TIMED = "right", "wrong", "refused", "timed"
BFLOAT16, FLOAT32 = "bfloat16", "float32"
_LARGEST = 2 << 30  # bytes of the cases of a contained reference
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ProblemSpec:
    """A problem by what it is made from, so that any process can make it. formats: that candidates compute in."""

    reference: str | None
    inputs: tuple[str, ...]
    seed: int
    families: tuple[str, ...]
    formats: tuple[str, ...] = ()
    tolerance: float | None = None  # relative to the largest result, in the place of what formats explain
    contained: bool = False  # the reference is somebody else's code, too, and gets a process of its own


@dataclass(frozen=True)
class CaseOutcome:
    """A candidate in a case: its worst element."""

    name: str
    ratio: float  # of its error to what it may be; above 1 it is wrong
    error: float = 0.0
    result: int = 0  # which of the results it is in
    at: tuple[int, ...] = ()
    got: float = 0.0
    wanted: float = 0.0
    said: str = ""  # what else there is to say, such as another shape

    @property
    def right(self) -> bool:
        """Whether every element is within what its formats explain."""
        return self.ratio <= 1


@dataclass(frozen=True)
class Judgement:
    """What became of a candidate."""

    verdict: str
    total: int = 0  # picoseconds
    others: Mapping[str, int] = field(default_factory=dict)  # the same under each policy that is not excluded
    cases: tuple[CaseOutcome, ...] = ()
    counters: Mapping[str, Any] = field(default_factory=dict)
    instructions: int = 0
    formats: tuple[str, ...] = ()  # narrower than float32 that it computes in
    error: TrnlabError | None = None

    @property
    def band(self) -> tuple[int, int]:
        """The shortest and the longest time that the evidence leaves open, in picoseconds."""
        times = (self.total, *self.others.values())
        return min(times), max(times)


@dataclass(frozen=True)
class PreparedCase:
    """A case with what is right in it; `exact` is empty where there is no reference."""

    case: Case
    exact: tuple[Exact, ...]


@functools.lru_cache(maxsize=4)
def prepared(spec: ProblemSpec) -> tuple[Problem, tuple[PreparedCase, ...]]:
    """The cases of a problem, once in a process; those whose result no float32 can say are left out, but usual ones.

    Raises UsageError (TRN841) for a reference that fails, or whose usual results are no finite numbers.
    """
    if spec.contained and spec.reference is not None:
        return Problem(spec.reference, _elsewhere, _elsewhere), tuple(_contained(spec))
    return here(spec)


def here(spec: ProblemSpec) -> tuple[Problem, tuple[PreparedCase, ...]]:
    """The cases of a problem, made in this process."""
    made, rng, found = problem(spec.reference, spec.inputs), np.random.default_rng(spec.seed + 1), []
    for case in made.cases(spec.seed, spec.families if made.reference is not None else ()):
        if made.reference is None:
            found.append(PreparedCase(case, ()))
            continue
        try:
            with np.errstate(all="ignore"):
                right = tuple(exact(made.reference, case.given, spec.formats, rng))
        except Exception as error:
            raise UsageError(
                "the reference fails",
                code="TRN841",
                got=f"{type(error).__name__}: {error}",
                remedy=f"it is called with the inputs of case {case.name!r}, floats as float64",
            ) from error
        if comparable(right, FLOAT32):
            found.append(PreparedCase(case, right))
        elif case.name.startswith("usual"):
            raise UsageError(
                "the reference gives no finite numbers for its usual inputs", code="TRN841", got=case.name
            )
    return made, tuple(found)


def cases_alone(spec: ProblemSpec) -> list[PreparedCase]:
    """What a process with the reference's code in it tells of the cases: kernels' arguments and what is right."""
    made, cases = here(replace(spec, contained=False))
    if made.from_kernel is not None:
        raise UsageError(
            "a reference that nobody has read cannot translate results",
            code="TRN841",
            got="transform_nki_outputs",
            remedy="give results the shapes of the kernel's",
        )
    return [PreparedCase(Case(each.case.name, (), each.case.arguments), each.exact) for each in cases]


def arguments_of(spec: ProblemSpec) -> tuple[Any, ...]:
    """What kernels are given in the first case."""
    if spec.contained and spec.reference is not None:
        found = called(f"{__name__}:{_first.__name__}", (spec,), replace(LIMITS, said=_LARGEST))
        if not isinstance(found, tuple):
            raise UsageError("what the reference's process says is no input", code="TRN841", got=type(found).__name__)
        return found
    return _first(spec)


def _first(spec: ProblemSpec) -> tuple[Any, ...]:
    made = problem(spec.reference, spec.inputs)
    return next(iter(made.cases(spec.seed, ()))).arguments


def _contained(spec: ProblemSpec) -> list[PreparedCase]:
    found = called(f"{__name__}:{cases_alone.__name__}", (spec,), replace(LIMITS, said=_LARGEST))
    if not isinstance(found, list) or not all(isinstance(each, PreparedCase) for each in found):
        raise UsageError("what the reference's process says is no case", code="TRN841", got=type(found).__name__)
    return found


def _elsewhere(*values: Any) -> Any:
    """The reference's code is not in this process."""
    raise AssertionError("a contained reference is called in its own process")


def judge(contents: Mapping[str, bytes], job: RecordingJob, spec: ProblemSpec) -> Judgement:
    """Judge what was recorded of a job. contents: by policy, as `recording.CandidateRecording` has them."""
    try:
        with on_target(job.target):
            chip = default_chip()
            return _judged(contents, job, spec, chip)
    except TrnlabError as error:
        error.__traceback__ = error.__cause__ = error.__context__ = None
        return Judgement(REFUSED, error=error)


def _judged(contents: Mapping[str, bytes], job: RecordingJob, spec: ProblemSpec, chip: Chip) -> Judgement:
    kernel = portable.loads(contents[""], chip)
    times = {}
    for name, content in contents.items():
        with policy.use(name or None):
            times[name] = (portable.loads(content, chip) if name else kernel).timeline(chip)
    narrow, formats = narrowest(kernel.trace.program, spec.formats)
    made, cases = prepared(spec)
    outcomes = tuple(_outcome(_of_case(kernel, job, each, chip), each, made, spec, narrow, chip) for each in cases)
    checked = [outcome for outcome in outcomes if outcome is not None]
    return Judgement(
        TIMED if made.reference is None else RIGHT if all(o.right for o in checked) else WRONG,
        times[""].total,
        {name: timeline.total for name, timeline in times.items() if name},
        tuple(checked),
        counters(kernel.trace.program, times[""], chip),
        kernel.trace.program.num_instructions,
        formats,
    )


def _of_case(kernel: portable.PortableKernel, job: RecordingJob, each: PreparedCase, chip: Chip) -> Any:
    """The recording for a case: of one whose instructions depend on contents it is made anew."""
    if not kernel.recorded_anew:
        return kernel
    (found,) = recordings([replace(job, arguments=each.case.arguments, policies=("",))], LIMITS)
    if found.error is not None:
        raise found.error
    return portable.loads(found.contents[""], chip)


def _outcome(
    kernel: portable.PortableKernel,
    each: PreparedCase,
    made: Problem,
    spec: ProblemSpec,
    narrow: str | None,
    chip: Chip,
) -> CaseOutcome | None:
    """None where there is no reference to hold it against."""
    if made.reference is None:
        return None
    arrays = [to_host(a) for a in each.case.arguments if isinstance(a, np.ndarray)]
    if len(arrays) != kernel.trace.arguments:
        return CaseOutcome(
            each.case.name, np.inf, said=f"{kernel.trace.arguments} tensors taken, {len(arrays)} given"
        )
    with np.errstate(all="ignore"):
        results, memory = kernel.run(arrays, chip)
    found = results if results is not None else tuple(memory[n] for n in kernel.trace.written)
    try:
        got = made.results(found, [e.value for e in each.exact])
    except Exception as error:  # of the reference's own code, for results that it does not expect
        return CaseOutcome(
            each.case.name, np.inf, said=f"its results cannot be read: {type(error).__name__}: {error}"
        )
    return compared(each.case.name, got, each.exact, narrow, spec.tolerance)


def compared(
    name: str, got: Sequence[Array], wanted: Sequence[Exact], narrow: str | None, tolerance: float | None = None
) -> CaseOutcome:
    """The worst element of all results. tolerance: relative to the largest right result, if not the formats'."""
    if len(got) != len(wanted):
        return CaseOutcome(name, np.inf, said=f"{len(got)} results, {len(wanted)} wanted")
    outcomes = [_worst(name, i, g, w, narrow, tolerance) for i, (g, w) in enumerate(zip(got, wanted))]
    return max(outcomes, key=lambda o: o.ratio, default=CaseOutcome(name, np.inf, said="no result"))


def _worst(
    name: str, index: int, got: Array, wanted: Exact, narrow: str | None, tolerance: float | None
) -> CaseOutcome:
    if got.shape != wanted.value.shape:
        said = f"result {index} is {list(got.shape)}, {list(wanted.value.shape)} wanted"
        return CaseOutcome(name, np.inf, result=index, said=said)
    if not got.size:
        return CaseOutcome(name, 0.0, result=index)
    form = got.dtype.name if is_float(got) else FLOAT32
    values = got.astype(np.float64)
    bound = wanted.bound(form if roundoff(form) >= roundoff(FLOAT32) else FLOAT32, narrow)
    if tolerance is not None:
        bound = np.full_like(values, tolerance * float(np.abs(wanted.value).max() or 1.0))
    error = np.abs(values - wanted.value)
    ratio = np.where(np.isfinite(values), error / bound, np.inf)
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    place = tuple(int(i) for i in at)
    return CaseOutcome(
        name, float(ratio[at]), float(error[at]), index, place, float(values[at]), float(wanted.value[at])
    )


def formats_of(kernels: Iterable[portable.PortableKernel], arguments: Sequence[Any]) -> tuple[str, ...]:
    """Formats narrower than float32 that kernels for these arguments may compute in: bfloat16 and what float16 is
    as good as, and narrower ones that the arguments have themselves."""
    given = {a.dtype.name for a in arguments if is_float(a)}
    allowed = {BFLOAT16, "float16", *(name for name in given if roundoff(name) > roundoff(FLOAT32))}
    used = {name for kernel in kernels for name in narrowest(kernel.trace.program, ())[1]}
    return tuple(sorted(used & allowed))
