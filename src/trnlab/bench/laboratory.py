# SPDX-License-Identifier: Apache-2.0
"""The laboratory for programs that write kernels: each function takes plain values and returns plain values, short
enough for a model to read, that end in the next step. `trnlab mcp` serves the same.

    from trnlab.bench import laboratory

    laboratory.judge(source, reference=reference_source)
    laboratory.explain(source, inputs=["float32[512,512]"])

kernel: the path of a file (FILE or FILE:FUNCTION), or the source itself. reference: the same. inputs: for each
argument "float32[512,512]" or a number; not needed where the reference has inputs(rng). What is wrong with a request
or a kernel is an answer, {"error": ..., "do": ...}, and no exception. All code runs in contained processes
(`trnlab.bench.contained`), the reference's too.
"""

from __future__ import annotations

import functools
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnlab.bench import contained, judging, ladder, tuning, variants
from trnlab.bench.candidate import KernelCandidate, candidate
from trnlab.bench.explanation import explained
from trnlab.bench.hostile import FAMILIES
from trnlab.bench.ideas import search
from trnlab.bench.ideas.candidates import trial_of
from trnlab.bench.ideas.document import plain
from trnlab.bench.ideas.sources import written
from trnlab.bench.judging import Judgement, ProblemSpec
from trnlab.bench.recording import on_target
from trnlab.errors import TrnlabError
from trnlab.nki import portable
from trnlab.nki.target import default_chip
from trnlab.storage.content import ContentStore

if TYPE_CHECKING:
    from collections.abc import Iterator

Answer = dict[str, Any]
NOTHING = "no change by rewriting gains; explain says where the time goes"
SHOWN = 3  # cases and points that are told in full


def _answered(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """What trnlab raises is an answer: what was wrong, the limit, and the way out."""

    @functools.wraps(function)
    def answering(*args: Any, **kwargs: Any) -> Answer:
        try:
            return function(*args, **kwargs)
        except TrnlabError as error:
            return _error(error)

    return answering


def _error(error: TrnlabError) -> Answer:
    words = {"error": f"{error.code}: {error.what}", "limit": error.limit, "got": error.got, "do": error.remedy}
    where = {"line": error.where.line, "text": error.where.text.strip()} if error.where is not None else None
    return {name: value for name, value in {**words, "at": where}.items() if value is not None}


@_answered
def judge(
    kernel: str, reference: str | None = None, inputs: Sequence[str] = (), target: str = "", hostile: bool = True
) -> Answer:
    """Whether a kernel is right, and how long it takes. hostile: also for inputs that kernels seldom meet."""
    with _problem([kernel], reference, inputs, target, hostile) as (bench, (one,)):
        (entry,) = ladder.run(bench, [one], None, _silent)
        found = _judgement(entry.judgement)
        found["next"] = _after(entry.judgement)
        return found


@_answered
def compare(
    kernels: Sequence[str], reference: str | None = None, inputs: Sequence[str] = (), target: str = ""
) -> Answer:
    """Several kernels as a ladder, the best right one first; which differences the model can tell."""
    with _problem(kernels, reference, inputs, target, True) as (bench, some):
        entries = ladder.run(bench, some, None, _silent)
        rows = [{"kernel": some.index(e.candidate), **_judgement(e.judgement)} for e in entries]
        good = [e for e in entries if e.judgement.total and e.judgement.verdict != judging.WRONG]
        ties = [some.index(e.candidate) for e in good[1:] if not ladder.told_apart(good[0].judgement, e.judgement)]
        following = (
            f"explain kernel {rows[0]['kernel']} to make it faster" if good else "mend the first: see its cases"
        )
        return {"ladder": rows, "not_told_from_the_first": ties, "next": following}


@_answered
def explain(kernel: str, inputs: Sequence[str] = (), reference: str | None = None, target: str = "") -> Answer:
    """Where a kernel's time goes along its critical path, the lines that cost most, what each change would gain."""
    with _problem([kernel], reference, inputs, target, False) as (bench, (one,)):
        recording = _recorded(bench, one)
        return explained(portable.loads(recording, default_chip()), default_chip())


@_answered
def ideas(
    kernel: str, inputs: Sequence[str] = (), reference: str | None = None, target: str = "", apply: Sequence[str] = ()
) -> Answer:
    """Changes to a kernel that keep its numbers bit by bit, made and timed: what each gains, why, how it is written.
    apply: names of changes to make, one after the other, or "all": the best, then the best after it."""
    with _problem([kernel], reference, inputs, target, False) as (bench, (one,)):
        trial = trial_of(bench, one)
        if not apply:
            proposals, tried = search.proposed(trial)
            return {
                "time_us": trial.total / 1e6,
                "tried": tried,
                "changes": [plain(t, trial.total) for t in proposals],
                "next": "write the first that keeps the bits, or apply several" if proposals else NOTHING,
            }
        changed, steps = search.climbed(trial) if list(apply) == ["all"] else search.applied(trial, apply)
        made = written(bench, one, steps)  # where all of them are arguments of calls
        source = made if made is not None and made.holds else None
        return {
            "time_us": trial.total / 1e6,
            "changed_time_us": changed.total / 1e6,
            "faster_by": round(trial.total / max(changed.total, 1), 3),
            "made": [plain(s.tried, s.before) for s in steps],
            "source": source.text if source else None,
            "next": (
                "judge the source" if source else "write these changes into the source, in this order, then judge it"
            )
            if steps
            else NOTHING,
        }


@_answered
def lint(kernel: str, target: str = "") -> Answer:
    """What the vendor's compiler would refuse in a kernel's source, without running it."""
    from trnlab.nki.lint import lint_file

    with _files([kernel]) as (one,), on_target(target):
        found, kernels = lint_file(one.path, default_chip(), bool(target))
        rows = [{"line": f.line, "severity": f.severity, "what": f.what, "do": f.remedy} for f in found]
        return {"kernels": kernels, "findings": rows, "next": "mend these" if rows else "judge it"}


@_answered
def instruction(name: str = "") -> Answer:
    """The page of an instruction: operands, limits, engines, cost, an example. Without a name: all names."""
    from trnlab.isa import REGISTRY
    from trnlab.isa.documentation import page, signature

    if name in REGISTRY:
        return {"signature": signature(REGISTRY[name]), "page": page(REGISTRY[name])}
    near = [known for known in sorted(REGISTRY) if not name or name.lower() in known]
    return {"names": near or sorted(REGISTRY), "next": "ask for one of these"}


@_answered
def rules(about: str = "") -> Answer:
    """What kernels are refused for: the limit, and the document that says so. about: a word to look for."""
    from trnlab.nki.refusals import refusals

    rows = [{"what": r.what, "limit": r.limit, "codes": list(r.codes)} for r in refusals()]
    found = [row for row in rows if about.lower() in f"{row['what']} {row['limit']}".lower()]
    return {"rules": found[:40], "found": len(found), "next": "give a word, such as partition, PSUM or dtype"}


@_answered
def tune(
    kernel: str,
    parameters: Mapping[str, Sequence[Any]],
    reference: str | None = None,
    inputs: Sequence[str] = (),
    target: str = "",
    budget: int = 64,
) -> Answer:
    """The fastest right values of a kernel's parameters: arguments with defaults, or constants of its file."""
    with _problem([kernel], reference, inputs, target, True) as (bench, (one,)):
        bench = replace(bench, band=False)
        source = one.path.read_text(encoding="utf-8")
        said = [f"{name}={','.join(map(repr, values))}" for name, values in parameters.items()]
        space = variants.space(source, said)
        variants.edited(source, one.function, next(iter(space)))
        task = tuning.TuneTask(bench.job(one, bench.arguments()), space, bench.spec, bench.limits)
        result = tuning.run(task, budget, None, ContentStore(None), lambda trial, number, of: None)
        fastest = [{"values": dict(t.values), "time_us": t.total / 1e6} for t in result.ranked()[:SHOWN]]
        best = result.best
        return {
            "best": None if best is None else {"values": dict(best[0].values), "time_us": best[0].total / 1e6},
            "source": None if best is None else variants.edited(source, one.function, best[0].values),
            "fastest": fastest,
            "refused": sorted({t.refused for t in result.trials if t.refused})[:SHOWN],
            "next": "explain the best" if best is not None else "judge one point to see why none is right",
        }


# -- what they share ------------------------------------------------------------------------------------------------
def _silent(what: str, number: int, of: int) -> None:
    """Nobody reads progress here."""


def _recorded(bench: ladder.KernelBench, one: KernelCandidate) -> bytes:
    job = replace(bench.job(one, bench.arguments()), policies=("",))
    (found,) = contained.recordings([job], bench.limits)
    if found.error is not None:
        raise found.error
    return found.contents[""]


def _judgement(j: Judgement) -> Answer:
    """A judgement in a few values."""
    if j.error is not None:
        return {"verdict": j.verdict, **_error(j.error)}
    low, high = j.band
    wrong = [o for o in j.cases if not o.right]
    found: Answer = {
        "verdict": j.verdict,
        "time_us": j.total / 1e6,
        "range_us": [low / 1e6, high / 1e6],
        "instructions": j.instructions,
        "computes_in": list(j.formats) or ["float32"],
    }
    if wrong:
        found["wrong_for"] = [o.name for o in wrong]
        found["worst"] = [_worst(o) for o in wrong[:SHOWN]]
    return found


def _worst(o: judging.CaseOutcome) -> Answer:
    if o.said:
        return {"inputs": o.name, "what": o.said}
    return {"inputs": o.name, "result": o.result, "at": list(o.at), "got": repr(o.got), "wanted": repr(o.wanted)}


def _after(j: Judgement) -> str:
    if j.verdict == judging.REFUSED:
        return "do what it says; `instruction` shows what an instruction takes, `rules` what kernels are refused for"
    if j.verdict == judging.WRONG:
        hostile = [o.name for o in j.cases if not o.right and o.name in FAMILIES]
        usual = any(o.name not in FAMILIES for o in j.cases if not o.right)
        return "it is wrong for usual inputs" if usual else f"it fails for {hostile[0]}: {FAMILIES[hostile[0]][0]}"
    return "explain it to see what would make it faster"


@contextmanager
def _problem(
    kernels: Sequence[str], reference: str | None, inputs: Sequence[str], target: str, hostile: bool
) -> Iterator[tuple[ladder.KernelBench, list[KernelCandidate]]]:
    texts = [*kernels, *([reference] if reference is not None else [])]
    with _files(texts) as files, on_target(target):
        some = files[: len(kernels)]
        right = files[-1] if reference is not None else None
        where = None if right is None else f"{right.path}" + (f":{right.function}" if right.function else "")
        families = tuple(FAMILIES) if hostile else ()
        spec = ProblemSpec(where, tuple(inputs), secrets.randbits(31), families, contained=True)
        yield ladder.KernelBench(spec, target), some


def is_source(text: str) -> bool:
    """Whether a text is a source, and no path of a file."""
    return "\n" in text.strip()


@contextmanager
def _files(texts: Sequence[str]) -> Iterator[list[KernelCandidate]]:
    """A file for each text that is a source; it goes when it was used."""
    with tempfile.TemporaryDirectory(prefix="trnlab-") as folder:
        found = []
        for number, text in enumerate(texts):
            if is_source(text):
                path = Path(folder) / f"kernel_{number}.py"
                path.write_text(text, encoding="utf-8")
                found.append(KernelCandidate(path))
            else:
                found.append(candidate(text))
        yield found
